"""Secrets in texts, names and command lines."""
