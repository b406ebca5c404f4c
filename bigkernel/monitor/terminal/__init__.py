"""Jobs on a terminal: the progress bar of a job, and the display of `watch`."""
