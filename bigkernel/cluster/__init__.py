"""Where workers come from: this machine, an address, hosts over SSH, SLURM; and TLS between them."""
