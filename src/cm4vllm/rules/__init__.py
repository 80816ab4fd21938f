"""MLPerf Inference as data: rounds, benchmarks, scenarios, targets, limits and seeds, each with its source.

`terms()` is the lookup; the tables behind it are the files under data/, and no other package reads them.
"""

from cm4vllm.rules.terms import (
    AccuracyTarget,
    Arrivals,
    Audit,
    BenchmarkTerms,
    Checker,
    Generation,
    LatencyLimits,
    LoadGenWheel,
    RateUse,
    RequiredScenarios,
    RoundTerms,
    Seeds,
    Terms,
    accuracy_targets,
    audit,
    benchmark_names,
    benchmark_terms,
    round_names,
    round_terms,
    terms,
)
from cm4vllm.rules.words import Category, Division, ExecutionMode, Mode, Scenario

__all__ = [
    "AccuracyTarget",
    "Arrivals",
    "Audit",
    "BenchmarkTerms",
    "Category",
    "Checker",
    "Division",
    "ExecutionMode",
    "Generation",
    "LatencyLimits",
    "LoadGenWheel",
    "Mode",
    "RateUse",
    "RequiredScenarios",
    "RoundTerms",
    "Scenario",
    "Seeds",
    "Terms",
    "accuracy_targets",
    "audit",
    "benchmark_names",
    "benchmark_terms",
    "round_names",
    "round_terms",
    "terms",
]
