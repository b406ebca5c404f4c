"""Scaling: one and two workers measured, up to 1,000 by a model."""
