"""Data on disk: zarr stores with a manifest, corpora, run directories, and the checks of all of them."""
