"""Jobs in a terminal: the bar of a job, and what `watch` shows."""
