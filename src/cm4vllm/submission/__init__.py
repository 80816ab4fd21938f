"""The submission tree, the truncation of its logs, and the official checker."""
