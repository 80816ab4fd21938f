"""MLPerf Inference as data: rounds, benchmarks, scenarios, targets, limits and seeds, each with its source.

Sources are files of mlcommons/inference at b66003e1 (2026-08-20) unless another is named.
"""
