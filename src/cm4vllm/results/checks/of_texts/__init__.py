"""Checks of texts that are published."""
