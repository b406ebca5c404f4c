"""Jobs on a terminal: the progress bar of a job, and the display of `watch`.

live : texts and bars of a job
figures : named figures
bar : progress of a job in its own process
"""
