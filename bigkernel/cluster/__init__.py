"""Sources of workers: this machine, an address, hosts over SSH, SLURM; and TLS between them."""
