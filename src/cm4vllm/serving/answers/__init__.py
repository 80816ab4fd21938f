"""Answers of servers, read by one code: by the probe before a run, and by the client that measures."""
