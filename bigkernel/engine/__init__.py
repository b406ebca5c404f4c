"""Sweeps over rows, run by one thread, several threads, or the workers of a Dask cluster."""
