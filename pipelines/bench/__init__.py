"""Benchmarks: ratios to other ways of doing the same, measured in one run."""
