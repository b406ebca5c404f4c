"""What a job tells: its events and messages, the books kept of them, and the ways to journals, schedulers and views."""
