"""The performance logs of a written tree: valid, within the limits, of the settings beside them, each of one result."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from cm4vllm import rules
from cm4vllm.loadgen.detail_log import KEPT_TEXTS
from cm4vllm.results.checks.check import Fault, Stage, check
from cm4vllm.results.findings import Severity
from cm4vllm.results.model import Performance, Result, Submission
from cm4vllm.results.reading import terms_of
from cm4vllm.rules import Division, Mode

__all__ = ["is_strict", "measured"]

_CHECKER = "tools/submission/submission_checker"
_AGAIN = "measure again, and publish that run"
#: `model.scenario.setting = value`, as user.conf has it.
_SETTING = re.compile(r"^\s*([\w.*-]+?)\.(\w+|\*)\.(\w+)\s*=\s*([\d.eE+-]+)\s*(?:#.*)?$", re.MULTILINE)
#: Settings that LoadGen logs as they are given, and by what they are logged in another unit.
_LOGGED = {
    "target_qps": ("target_qps", 1.0),
    "min_duration": ("min_duration_ms", 1.0),
    "performance_sample_count_override": ("performance_sample_count", 1.0),
}
#: The part of a setting by which log and user.conf may differ: logs have six digits.
_ROUNDING = 1e-4
_LOADGEN_ERROR = ("LoadGen error", "LoadGen counted")


def is_strict(submission: Submission) -> bool:
    """Whether the rules of the closed division hold, as they do in the network division."""
    return submission.division != Division.OPEN


def measured(submission: Submission) -> Iterator[tuple[Result, Performance]]:
    """Give each result that has a performance log, with it."""
    for result in submission.results:
        if result.performance is not None:
            yield result, result.performance


@check(
    "RESULT-INVALID",
    "LoadGen calls a published result VALID, and nothing in its log speaks against that",
    source="inference_policies/inference_rules.adoc, LoadGen Operation",
    remedy=_AGAIN,
    stage=Stage.TREE,
)
def valid(submission: Submission) -> Iterator[Fault]:
    for _, part in measured(submission):
        reasons = [one for one in part.loadgen_reasons if not one.startswith(_LOADGEN_ERROR)]
        if not part.loadgen_valid and (reasons or not part.loadgen_reasons):
            yield Fault(
                "the result is not valid", part.log, "result_validity", "; ".join(reasons) or "INVALID", "VALID"
            )


@check(
    "LOG-ERRORS",
    "LoadGen logged no error",
    source=f"{_CHECKER}/checks/performance_check.py",
    remedy=_AGAIN,
    stage=Stage.TREE,
)
def no_errors(submission: Submission) -> Iterator[Fault]:
    for result in submission.results:
        for part in (result.performance, result.accuracy):
            if part is not None and part.errors:
                more = " or more" if len(part.errors) == KEPT_TEXTS else ""
                yield Fault(
                    f"LoadGen logged {len(part.errors)}{more} errors", part.log, "is_error", part.errors[0], "none"
                )
            elif isinstance(part, Performance) and any(one.startswith(_LOADGEN_ERROR) for one in part.loadgen_reasons):
                yield Fault("LoadGen counted errors", part.log, "num_errors", part.loadgen_reasons[0], "0")


@check(
    "LATENCY-LIMIT",
    "the 99th percentiles of TTFT and TPOT lie below the limits of the scenario that the folder names",
    source=f"{_CHECKER}/constants.py, LLM_LATENCY_LIMITS",
    remedy="measure at a lower target QPS",
    stage=Stage.TREE,
)
def latency_limits(submission: Submission) -> Iterator[Fault]:
    for result, part in measured(submission):
        for latency in part.latencies:
            if latency.met is False:
                yield Fault(
                    f"{latency.name} p99 exceeds the limit of {result.scenario}",
                    part.log,
                    part.figures[f"{latency.name.lower()}_p99"].source.field,
                    latency.p99,
                    f"less than {latency.limit}",
                )


@check(
    "METRIC-MISSING",
    "a log has the figure by which results of its scenario are compared: tokens/s for language models",
    source=f"{_CHECKER}/constants.py, RESULT_FIELD_BENCHMARK_OVERWRITE",
    remedy="measure with LoadGen's own name of the benchmark, so that it counts tokens",
    stage=Stage.TREE,
)
def metric(submission: Submission) -> Iterator[Fault]:
    for result, part in measured(submission):
        if part.metric is None:
            yield Fault(f"there is no figure by which {result.scenario} results are compared", part.log)
        elif not _counts_tokens(result):
            continue
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
    """Whether LoadGen counts the tokens of the benchmark: it does where the benchmark has limits on TTFT and TPOT."""
    found = (terms_of(result.round, result.benchmark, one, Mode.PERFORMANCE) for one in rules.Scenario)
    return any(one and one.limits and one.limits.ttft_ms for one in found)


@check(
    "PERFORMANCE-SAMPLES",
    "a performance run draws from all samples of the dataset, and Offline issues them all",
    source=f"{_CHECKER}/constants.py, performance-sample-count and OFFLINE_MIN_SPQ_SINCE_V4",
    remedy=_AGAIN,
    stage=Stage.TREE,
)
def performance_samples(submission: Submission) -> Iterator[Fault]:
    for _, part in measured(submission):
        if (terms := part.terms) is None:
            continue
        drawn = part.settings.get("performance_sample_count")
        if isinstance(drawn, int) and drawn < terms.samples:
            yield Fault(
                "the run draws from a part of the dataset",
                part.log,
                "effective_performance_sample_count",
                drawn,
                f"{terms.samples} or more",
            )
        issued = part.settings.get("samples_per_query")
        if terms.at_once and isinstance(issued, int) and issued < terms.min_samples:
            yield Fault(
                "Offline issues fewer samples than the rules ask for",
                part.log,
                "effective_samples_per_query",
                issued,
                f"{terms.min_samples} or more",
                severity=Severity.ERROR if is_strict(submission) else Severity.WARNING,
            )


@check(
    "USER-CONF-DIFFERS",
    "the settings in user.conf are those that LoadGen used",
    source="loadgen/mlperf.conf",
    remedy="publish the user.conf of the run whose log is published",
    severity=Severity.WARNING,
    stage=Stage.TREE,
)
def user_conf(submission: Submission) -> Iterator[Fault]:
    for result, part in measured(submission):
        for (scenario, key), value in _settings_of(result).items():
            logged, unit = _LOGGED[key]
            used = part.settings.get(logged)
            if isinstance(used, int | float) and abs(used * unit - value) > _ROUNDING * max(abs(value), 1e-9):
                yield Fault(
                    f"user.conf states another {key} than the log",
                    result.files.get("user_conf", ""),
                    f"{scenario}.{key}",
                    f"{value:g}",
                    f"{used * unit:g}, as in {part.log}",
                )


def _settings_of(result: Result) -> dict[tuple[str, str], float]:
    """Return what user.conf sets for the run: of several lines the one that is most of this model."""
    found: dict[str, tuple[int, str, float]] = {}
    name = (
        result.performance.terms.loadgen_name if result.performance and result.performance.terms else result.benchmark
    )
    # An Interactive run may be given as LoadGen's Server scenario of a model of that name.
    scenario = result.performance.loadgen_scenario if result.performance else result.scenario
    for model, of, key, text in _SETTING.findall(result.user_conf):
        if key not in _LOGGED or of not in (scenario, "*") or (model != "*" and not name.startswith(model)):
            continue
        try:
            value = float(text)
        except ValueError:
            continue
        weight = 2 * (model != "*") + (of != "*")
        if key not in found or weight >= found[key][0]:
            found[key] = weight, of, value
    return {(of, key): value for key, (_, of, value) in found.items()}


@check(
    "LOG-TIMES",
    "the times in a log are in order: the run lasted at least as long as its result says",
    source="loadgen/loadgen.cc",
    remedy=_AGAIN,
    stage=Stage.TREE,
)
def times(submission: Submission) -> Iterator[Fault]:
    for _, part in measured(submission):
        begin, end = (_time(part.settings.get(key)) for key in ("power_begin", "power_end"))
        if begin is None or end is None:
            continue
        if end < begin:
            yield Fault(
                "the run ends before it begins", part.log, "power_end", end.isoformat(), f"after {begin.isoformat()}"
            )
        elif part.duration and (end - begin).total_seconds() + 2 < part.duration * 0.99:
            yield Fault(
                "the run was shorter than its result says",
                part.log,
                "power_begin, power_end",
                f"{(end - begin).total_seconds():.0f} s",
                f"{part.duration:.0f} s or more",
            )
        start = _day(part.settings.get("test_datetime"))
        if start and abs(start - begin) > timedelta(days=1, hours=2):
            yield Fault(
                "the log names two different days",
                part.log,
                "test_datetime",
                start.isoformat(),
                begin.isoformat(),
                severity=Severity.WARNING,
            )


def _time(value: object) -> datetime | None:
    try:
        return datetime.strptime(str(value), "%m-%d-%Y %H:%M:%S.%f").replace(tzinfo=UTC)
    except ValueError:
        return None


def _day(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value)).replace(tzinfo=UTC)
    except ValueError:
        return None


@check(
    "LOADGEN-VERSIONS",
    "the runs of a result were made by one LoadGen, of a version that has the round's seeds",
    source="wheels of mlcommons-loadgen",
    remedy="measure all runs of a result with one LoadGen",
    severity=Severity.WARNING,
    stage=Stage.TREE,
)
def loadgen_versions(submission: Submission) -> Iterator[Fault]:
    for result, part in measured(submission):
        other = result.accuracy.loadgen_version if result.accuracy else ""
        if other and _number(other) != _number(part.loadgen_version):
            yield Fault(
                "performance and accuracy run were made by different versions of LoadGen",
                part.log,
                "loadgen_version",
                part.loadgen_version,
                f"{other}, as in {result.accuracy.log}" if result.accuracy else "",
            )


def _number(version: str) -> str:
    return version.partition(" ")[0]
