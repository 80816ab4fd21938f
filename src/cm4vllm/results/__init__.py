"""One typed model of what was measured, read from run folders and from submission trees, and the checks on it."""
