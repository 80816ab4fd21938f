"""Checks of the points of a curve: configuration, load, accuracy runs, copies, and texts."""
