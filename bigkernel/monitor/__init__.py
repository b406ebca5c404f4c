"""Monitoring of jobs: a page, metrics, a report, and a line on a terminal."""
