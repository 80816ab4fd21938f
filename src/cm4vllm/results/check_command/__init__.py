"""The check of a submission tree and its output."""
