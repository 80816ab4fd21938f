"""Plan of a run, made without running anything: its steps, downloads, installations and times."""
