"""The page of running jobs on Dask's dashboard, and its metrics."""
