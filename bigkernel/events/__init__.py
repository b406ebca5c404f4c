"""Events and messages of a job, its progress, and their routes to journals, schedulers and views."""
