"""Checks of a job before anything is started."""
