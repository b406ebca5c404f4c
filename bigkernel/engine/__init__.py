"""`sweep`, and who runs it: one thread, threads, or the workers of a Dask cluster."""
