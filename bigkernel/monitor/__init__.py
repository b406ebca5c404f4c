"""What people see of a job: one page, its metrics, its report, one line on a terminal."""
