"""Bandwidth and penalty by cross-validation."""
