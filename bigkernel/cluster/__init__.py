"""Clusters: this machine, an address, hosts over SSH, SLURM; and TLS between their processes.

certificates : of one cluster
cluster_file : a cluster as checked data
attach : a client of a running scheduler
dask_settings : configuration of Dask's processes
launchers : hosts by SSH, jobs of SLURM
connect : a client of any of them
"""
