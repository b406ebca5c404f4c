"""What there is to know of a job, made of its messages."""
