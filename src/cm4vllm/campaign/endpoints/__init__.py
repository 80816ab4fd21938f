"""A job of MLPerf Endpoints: its settings, its schedule, and its execution."""
