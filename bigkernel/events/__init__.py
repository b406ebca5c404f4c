"""Events and messages of a job, its progress, and their routes to journals, schedulers and views.

progress : one sweep
job : events of a driver, their receivers and messages
board : the state of all jobs of a process
journal : messages of a run on disk
plugin : the board of a scheduler
sinks : from a driver to journal, scheduler and views
"""
