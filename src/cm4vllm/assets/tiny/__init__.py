"""Tiny models and their datasets, which stand in for those of benchmarks."""
