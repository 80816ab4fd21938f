"""What this machine can run, what is missing, and what to do about it."""
