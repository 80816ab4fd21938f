"""A job while it runs: its status as data in status.json, on the terminal, and as a page."""
