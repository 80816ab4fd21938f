"""MLPerf Inference as data: rounds, benchmarks, scenarios, targets, limits and seeds, each with its source.

`terms()` is the lookup; the tables behind it are the files under data/, and no other package reads them.
"""

from cm4vllm.rules.compliance import (
    Audit,
    ComplianceRules,
    VerifiedFigure,
    VerifiedFile,
    audit,
    compliance_rules,
    compliance_test_names,
)
from cm4vllm.rules.divisions import DivisionRule, Speculation, division_rules, over_network, speculation
from cm4vllm.rules.layouts import TreeLayout, layout_of_round, layout_of_tree, tree_layout, tree_layouts
from cm4vllm.rules.records import (
    AccuracyTarget,
    BenchmarkTerms,
    Column,
    Generation,
    LatencyLimits,
    RequiredScenarios,
    RoundTerms,
    StopSequence,
    Terms,
)
from cm4vllm.rules.tables import Arrivals, Checker, LoadGenWheel, RateUse, Seeds
from cm4vllm.rules.terms import (
    accuracy_targets,
    benchmark_names,
    benchmark_of,
    benchmark_terms,
    issues_equally,
    language_models,
    require_text,
    round_names,
    round_terms,
    terms,
    terms_of_test,
)
from cm4vllm.rules.vocabulary import Category, Division, ExecutionMode, Mode, Scenario

__all__ = [
    "AccuracyTarget",
    "Arrivals",
    "Audit",
    "BenchmarkTerms",
    "Category",
    "Checker",
    "Column",
    "ComplianceRules",
    "Division",
    "DivisionRule",
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
    "Speculation",
    "StopSequence",
    "Terms",
    "TreeLayout",
    "VerifiedFigure",
    "VerifiedFile",
    "accuracy_targets",
    "audit",
    "benchmark_names",
    "benchmark_of",
    "benchmark_terms",
    "compliance_rules",
    "compliance_test_names",
    "division_rules",
    "issues_equally",
    "language_models",
    "layout_of_round",
    "layout_of_tree",
    "over_network",
    "require_text",
    "round_names",
    "round_terms",
    "speculation",
    "terms",
    "terms_of_test",
    "tree_layout",
    "tree_layouts",
]
