"""The state of jobs, made of their messages."""
