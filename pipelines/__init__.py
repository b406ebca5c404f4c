"""Whole jobs, from data to a report page: `python -m pipelines NAME`, from the checkout (not in the wheel)."""
