"""Data on disk: zarr stores with a manifest, corpora, run directories, and their integrity checks."""
