"""Clusters: this machine, an address, hosts over SSH, SLURM; and TLS between their processes."""
