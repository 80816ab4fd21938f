"""Samples of datasets: the formats of their files, their media and their tokens."""
