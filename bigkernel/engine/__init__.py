"""Sweeps over rows, run by one thread, several threads, or the workers of a Dask cluster.

process : memory, processors and BLAS threads of a process
interrupts : fast start and orderly end of a command
grids : cells of xarray as rows
rows : a lazily read matrix with its columns
leaf_rows : rows on disk by leaf
cards : processors or a GPU, and what a sweep needs of it
preflight : checks before the first task
tasks : a segment, a merge, or several in order
executor : what remains of a sweep, and its tasks in this process
worker_watch : lost workers and bounded waits
dask_executor : a sweep on a cluster
sweep : rows through a statistic
context : client, run directory and device of a block of code
pilot : the time of a job from a piece of it
prediction_store : predictions of rows on disk
grid_store : predictions of cells on disk
"""
