"""Data on disk: zarr stores with a manifest, corpora, run directories, and their integrity checks.

atomic_write : files that appear complete or not at all
cf : packed arrays, by the CF conventions
labels : classes or numbers
dask_arrays : Dask arrays of one class
table : from the columns of a table to numbers
visible : text of others, safe to print
run_lock : one driver at a time in a directory
containers : what an array, a frame or a matrix of any library means
zarr_arrays : groups of zarr with a manifest
corpus : rows on disk with their columns
fingerprint : the content of a job as digest and text
readers : files of other formats
run_directory : finished work of a job
write_corpus : Python objects to a corpus
prediction_table : predictions as CSV or Parquet
check : every chunk of a store or a run
ingest : files to a corpus
"""
