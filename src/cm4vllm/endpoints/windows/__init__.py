"""Blocks of passes over the dataset, and the statistics by which they are a window of the steady state."""
