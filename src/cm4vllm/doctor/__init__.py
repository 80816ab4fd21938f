"""The page of a machine: the benchmarks that it can run, and what is missing for others."""
