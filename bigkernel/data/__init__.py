"""Data on disk: sealed zarr stores, corpora, run directories, and the checks of all of them."""
