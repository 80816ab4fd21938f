"""The schedule of a job, as data: its steps, their targets, sizes and times."""
