"""Whole jobs, from data to a report page: `python -m pipelines NAME` in a checkout (not part of the wheel)."""
