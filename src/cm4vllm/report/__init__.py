"""Pages and tables computed from a run's records."""
