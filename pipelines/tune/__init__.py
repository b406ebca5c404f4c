"""Bandwidth and penalty by cross-validation, and why copies of an image share a fold."""
