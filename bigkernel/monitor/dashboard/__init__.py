"""The page of running jobs on Dask's dashboard, and its metrics.

metrics : for Prometheus
server : routes of a scheduler's HTTP server
"""
