"""Checks of systems and their descriptions."""
