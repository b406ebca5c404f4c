"""Monitoring of jobs: a page, metrics, a report, and a line on a terminal.

palette : colours
page : the page of jobs
terminal : jobs on a terminal
dashboard : the page and metrics of a scheduler
report : the state and the page of a run directory
"""
