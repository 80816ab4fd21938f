"""LoadGen's performance logs: valid, within the limits, by the rules of their round and by our records of the runs."""

import math
from collections.abc import Iterator

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.units import Milliseconds
from cm4vllm.records.logs.detail_log import KEPT_TEXTS
from cm4vllm.records.logs.run_logs import IMPOSSIBLE
from cm4vllm.results.checks.of_logs.shared_logs import is_inferred
from cm4vllm.results.checks.subjects import Part, is_strict, measured_results, parts, with_submission
from cm4vllm.results.endpoints.endpoints_harness import ENDPOINTS
from cm4vllm.results.log_folders import terms_of
from cm4vllm.results.model import Accuracy, Performance, Result, Submission
from cm4vllm.rules import Mode, Terms

_CHECKER = "tools/submission/submission_checker"
_AGAIN = "measure again, and publish that run"
_LOADGEN_ERROR = ("LoadGen error", "LoadGen counted")
#: The beginnings of reasons that other checks report: LOG-ERRORS; LOG-FIGURES, LOG-ORDER and LOG-TIMES.
_OF_OTHERS = (*_LOADGEN_ERROR, IMPOSSIBLE)
#: The difference allowed between LoadGen's token count and the client's: LoadGen's logs round rates to six digits.
TOKENS_TOLERANCE = 0.001
_CONSTANTS = "tools/submission/submission_checker/constants.py"
_RERUN = "remove the run's folder and run it again"


@check(
    "RESULT-INVALID",
    source="inference_policies/inference_rules.adoc, LoadGen Operation",
    remedy=_AGAIN,
    stage=Stage.TREE,
    each=measured_results,
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
    each=measured_results,
)
def latency_limits(result: Result, part: Performance) -> Iterator[Fault]:
    """The 99th percentiles of TTFT and TPOT, or of the latency, keep the limits of the folder's scenario."""
    yield from _whole_latency(result, part)
    yield from (
        Fault(
            f"{latency.name} p99 exceeds the limit of {result.scenario}",
            part.log,
            part.figures[f"{latency.name.lower()}_p99"].source.field,
            latency.p99,
            f"less than {latency.limit}",
        )
        for latency in part.latencies
        if latency.met is False and latency.name in ("TTFT", "TPOT")
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
    each=measured_results,
)
def metric(result: Result, part: Performance) -> Iterator[Fault]:
    """A log has the figure by which results of its scenario are compared: tokens/s for language models."""
    # LoadGen counts tokens only where a benchmark has limits on TTFT and TPOT.
    all_terms = (terms_of(result.round, result.benchmark, scenario, Mode.PERFORMANCE) for scenario in rules.Scenario)
    counts_tokens = any(terms and terms.limits and terms.limits.ttft_ms for terms in all_terms)
    if part.metric is None:
        yield Fault(f"there is no figure by which {result.scenario} results are compared", part.log)
    elif counts_tokens and part.settings.get("requested_use_token_latencies") is False:
        yield Fault(
            "LoadGen was set not to count tokens",
            part.log,
            "requested_use_token_latencies",
            "false",
            "true, as mlperf.conf has it for the benchmark",
        )
    elif counts_tokens and part.tokens_per_second is None:
        yield Fault(
            "the log of a language model counts no tokens",
            part.log,
            "use_token_latencies",
            part.metric.name,
            "tokens_per_second",
        )


@check(
    "PERFORMANCE-SAMPLES",
    source=f"{_CHECKER}/constants.py, performance-sample-count, OFFLINE_MIN_SPQ_SINCE_V4 and min-queries",
    remedy=_AGAIN,
    stage=Stage.TREE,
    each=measured_results,
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
        yield from _requested_count_faults(part, terms, strict=is_strict(result))


def _requested_count_faults(part: Performance, terms: Terms, *, strict: bool) -> Iterator[Fault]:
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


@check("LOG-SCENARIO", source="loadgen/test_settings.h", remedy=_RERUN, each=with_submission(measured_results))
def scenario(submission: Submission, result: Result, part: Performance) -> Iterator[Fault]:
    """LoadGen ran the scenario that the result is of."""
    if part.terms is None or is_inferred(submission, result):
        return
    if part.loadgen_scenario != part.terms.loadgen_scenario:
        yield Fault(
            f"LoadGen ran {part.loadgen_scenario} where the result is of {part.terms.scenario}",
            part.log,
            "effective_scenario",
            part.loadgen_scenario,
            part.terms.loadgen_scenario,
        )


@check("LOG-SEEDS", source=f"{_CONSTANTS}, seeds", remedy=_RERUN, each=parts)
def seeds(_: Result, part: Part) -> Iterator[Fault]:
    """A log has the three seeds of its round."""
    is_accuracy = isinstance(part, Accuracy)
    if part.terms is None or part.terms.round not in rules.round_names() or (is_accuracy and part.detail is None):
        return
    # A record may state other seeds; the terms of a log in a tree are the rules' own, and those of its test.
    stated = rules.round_terms(part.terms.round).seeds if part.run else part.terms.seeds
    by_endpoints = isinstance(part, Performance) and part.harness == ENDPOINTS
    expected = (None if by_endpoints else stated.qsl), stated.sample_index, stated.schedule
    if part.seeds != expected:
        yield Fault(
            f"the seeds of the {'accuracy run' if is_accuracy else 'log'} are not those of round {part.terms.round}",
            part.log,
            "effective_qsl_rng_seed, effective_sample_index_rng_seed, effective_schedule_rng_seed",
            part.seeds,
            expected,
            # An accuracy run answers every sample, in whatever order: no official checker reads its seeds.
            severity=Severity.WARNING if is_accuracy else None,
        )


@check("LOG-MIN-DURATION", source=f"{_CONSTANTS}, min duration", remedy=_RERUN, each=measured_results)
def min_duration(_: Result, part: Performance) -> Iterator[Fault]:
    """A result's run was configured to last the minimum duration at least."""
    if part.terms is None or (part.run and part.run.settings.rehearsal):
        return
    wanted = part.terms.min_duration_ms / 1e3
    if part.min_duration < wanted:
        yield Fault(
            f"a result needs a minimum duration of {wanted:g} s, LoadGen was given {part.min_duration}",
            part.log,
            "effective_min_duration_ms",
            part.min_duration * 1e3,
            part.terms.min_duration_ms,
        )


@check("LOG-TARGET-QPS", source="user.conf of the run", remedy=_RERUN, each=measured_results)
def target_qps(_: Result, part: Performance) -> Iterator[Fault]:
    """LoadGen was given the target QPS of the record."""
    wanted = part.run.settings.target_qps if part.run else 0.0
    if wanted and not math.isclose(wanted, part.target_qps, rel_tol=1e-4):
        yield Fault(
            f"LoadGen was asked for target_qps {part.target_qps:g}, the record says {wanted:g}",
            part.log,
            "effective_target_qps",
            part.target_qps,
            wanted,
        )


@check(
    "TOKENS-RATE",
    source="loadgen/results.cc, tps_as_completed and tokens_per_second",
    remedy=_RERUN,
    each=measured_results,
)
def tokens_rate(_: Result, part: Performance) -> Iterator[Fault]:
    """tokens/s is samples/s times the tokens of a sample: LoadGen's log against the client's count."""
    rate, duration = part.tokens_per_second, part.duration
    if part.run is None or rate is None or not duration:
        return
    counted = part.run.client.reported_tokens or part.run.client.completion_tokens
    least, most = (rate * (duration + last) for last in _last_answer_s(part))
    if not least * (1 - TOKENS_TOLERANCE) <= counted <= most * (1 + TOKENS_TOLERANCE):
        yield Fault(
            f"tokens/s is not samples/s times tokens per sample in {part.log}",
            part.log,
            part.figures["tokens_per_second"].source.field,
            f"{rate} at {part.samples_per_second}, which makes {rate * duration:,.0f} tokens",
            f"the {counted:,} tokens that the client reported to LoadGen",
        )


def _last_answer_s(part: Performance) -> tuple[float, float]:
    """Return in s how much longer than its duration a run lasts at least and at most until all is answered.

    Where queries come one by one LoadGen's duration ends when it issues the last one, but its tokens/s are of the time
    until that one is answered (loadgen/results.cc, final_query_issued_time and final_query_all_samples_done_time).
    """
    if not part.one_by_one:
        return 0.0, 0.0
    return (part.figures.value("latency_min") or 0.0) / 1e3, (part.figures.value("latency_max") or 0.0) / 1e3
