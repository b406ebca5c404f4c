"""The page of the running jobs on Dask's dashboard, and its metrics."""
