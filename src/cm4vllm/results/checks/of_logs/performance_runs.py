"""The performance logs of a written tree: valid, within the limits, with the stated settings, each of one result."""

from collections.abc import Iterator

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.units import Milliseconds
from cm4vllm.records.logs.detail_log import KEPT_TEXTS
from cm4vllm.records.logs.run_logs import IMPOSSIBLE
from cm4vllm.results.checks.subjects import Part, is_strict, measured, parts
from cm4vllm.results.log_folders import terms_of
from cm4vllm.results.model import Performance, Result
from cm4vllm.rules import Mode, Terms

__all__: list[str] = []

_CHECKER = "tools/submission/submission_checker"
_AGAIN = "measure again, and publish that run"
_LOADGEN_ERROR = ("LoadGen error", "LoadGen counted")
#: The beginnings of reasons that other checks report: LOG-ERRORS; LOG-FIGURES, LOG-ORDER and LOG-TIMES.
_OF_OTHERS = (*_LOADGEN_ERROR, IMPOSSIBLE)


@check(
    "RESULT-INVALID",
    source="inference_policies/inference_rules.adoc, LoadGen Operation",
    remedy=_AGAIN,
    stage=Stage.TREE,
    each=measured,
)
def valid(_: Result, part: Performance) -> Iterator[Fault]:
    """LoadGen calls a published result VALID, and nothing in its log speaks against that."""
    reasons = [reason for reason in part.loadgen_reasons if not reason.startswith(_OF_OTHERS)]
    if not part.loadgen_valid and (reasons or not part.loadgen_reasons):
        yield Fault("the result is not valid", part.log, "result_validity", "; ".join(reasons) or "INVALID", "VALID")


@check("LOG-ERRORS", source=f"{_CHECKER}/checks/performance_check.py", remedy=_AGAIN, stage=Stage.TREE, each=parts)
def no_errors(_: Result, part: Part) -> Iterator[Fault]:
    """LoadGen logged no error."""
    if part.errors:
        more = " or more" if len(part.errors) == KEPT_TEXTS else ""
        yield Fault(f"LoadGen logged {len(part.errors)}{more} errors", part.log, "is_error", part.errors[0], "none")
    elif isinstance(part, Performance) and any(reason.startswith(_LOADGEN_ERROR) for reason in part.loadgen_reasons):
        yield Fault("LoadGen counted errors", part.log, "num_errors", part.loadgen_reasons[0], "0")


@check(
    "LATENCY-LIMIT",
    source=f"{_CHECKER}/constants.py, LLM_LATENCY_LIMITS and latency-constraint",
    remedy="measure at a lower target QPS",
    stage=Stage.TREE,
    each=measured,
)
def latency_limits(result: Result, part: Performance) -> Iterator[Fault]:
    """The 99th percentiles of TTFT and TPOT, or of the latency, keep the limits of the folder's scenario."""
    yield from _whole_latency(result, part)
    for latency in part.latencies:
        if latency.met is False and latency.name in ("TTFT", "TPOT"):
            yield Fault(
                f"{latency.name} p99 exceeds the limit of {result.scenario}",
                part.log,
                part.figures[f"{latency.name.lower()}_p99"].source.field,
                latency.p99,
                f"less than {latency.limit}",
            )


def _whole_latency(result: Result, part: Performance) -> Iterator[Fault]:
    """Yield the latencies over the limit of a benchmark that limits the latency of whole answers.

    With early stopping LoadGen itself compares with the target latency that it is given.
    """
    terms = part.terms
    if terms is None or terms.limits is None or (limit := terms.limits.latency_ms) is None:
        return
    target, p99 = part.settings.get("target_latency_ns"), part.figures.value("latency_p99")
    if terms.early_stopping and isinstance(target, int | float):
        if target / 1e6 > limit:
            yield Fault(
                f"LoadGen was given a longer target latency than {result.scenario} has",
                part.log,
                "effective_target_latency_ns",
                Milliseconds(target / 1e6),
                f"{Milliseconds(limit)} or less",
            )
    elif p99 is not None and p99 > limit:
        yield Fault(
            f"latency p99 exceeds the limit of {result.scenario}",
            part.log,
            part.figures["latency_p99"].source.field,
            Milliseconds(p99),
            f"{Milliseconds(limit)} or less",
        )


@check(
    "METRIC-MISSING",
    source=f"{_CHECKER}/constants.py, RESULT_FIELD_BENCHMARK_OVERWRITE",
    remedy="measure with LoadGen's own name of the benchmark, so that it counts tokens",
    stage=Stage.TREE,
    each=measured,
)
def metric(result: Result, part: Performance) -> Iterator[Fault]:
    """A log has the figure by which results of its scenario are compared: tokens/s for language models."""
    if part.metric is None:
        yield Fault(f"there is no figure by which {result.scenario} results are compared", part.log)
    elif not _counts_tokens(result):
        return
    elif part.settings.get("requested_use_token_latencies") is False:
        yield Fault(
            "LoadGen was set not to count tokens",
            part.log,
            "requested_use_token_latencies",
            "false",
            "true, as mlperf.conf has it for the benchmark",
        )
    elif part.tokens_per_second is None:
        yield Fault(
            "the log of a language model counts no tokens",
            part.log,
            "use_token_latencies",
            part.metric.name,
            "tokens_per_second",
        )


def _counts_tokens(result: Result) -> bool:
    """Return True if LoadGen counts the tokens of the benchmark: only where it has limits on TTFT and TPOT."""
    all_terms = (terms_of(result.round, result.benchmark, scenario, Mode.PERFORMANCE) for scenario in rules.Scenario)
    return any(terms and terms.limits and terms.limits.ttft_ms for terms in all_terms)


@check(
    "PERFORMANCE-SAMPLES",
    source=f"{_CHECKER}/constants.py, performance-sample-count, OFFLINE_MIN_SPQ_SINCE_V4 and min-queries",
    remedy=_AGAIN,
    stage=Stage.TREE,
    each=measured,
)
def performance_samples(result: Result, part: Performance) -> Iterator[Fault]:
    """A performance run draws from all samples of the dataset, and Offline issues them all."""
    drawn, held = (part.settings.get(key) for key in ("performance_sample_count", "qsl_reported_total_count"))
    if isinstance(drawn, int) and isinstance(held, int) and 0 < held < drawn:
        yield Fault(
            "the run draws from more samples than its sample library has",
            part.log,
            "qsl_reported_total_count",
            held,
            f"{drawn} or more, effective_performance_sample_count",
            severity=Severity.WARNING,
        )
    if (terms := part.terms) is None:
        return
    if isinstance(drawn, int) and drawn < terms.samples:
        yield Fault(
            "the run draws from a part of the dataset",
            part.log,
            "effective_performance_sample_count",
            drawn,
            f"{terms.samples} or more",
        )
    if part.loadgen_scenario == terms.loadgen_scenario:  # else LOG-SCENARIO, or inferred
        yield from _issued(part, terms, strict=is_strict(result))


def _issued(part: Performance, terms: Terms, *, strict: bool) -> Iterator[Fault]:
    """Yield the counts of samples and queries that a run was asked for and that are below those of the rules."""
    issued, queries = (part.settings.get(key) for key in ("samples_per_query", "min_query_count"))
    if terms.at_once and isinstance(issued, int) and issued < terms.min_samples:
        yield Fault(
            "Offline issues fewer samples than the rules ask for",
            part.log,
            "effective_samples_per_query",
            issued,
            f"{terms.min_samples} or more",
            severity=Severity.ERROR if strict else Severity.WARNING,
        )
    if not terms.early_stopping and isinstance(queries, int) and queries < terms.min_queries:
        yield Fault(
            "LoadGen was asked for fewer queries than the rules have",
            part.log,
            "effective_min_query_count",
            queries,
            f"{terms.min_queries} or more",
        )
