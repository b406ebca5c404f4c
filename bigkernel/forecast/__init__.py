"""How long a job will take: rates that were measured on this machine, and the time they add up to."""
