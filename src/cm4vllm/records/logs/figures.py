"""The figures of a performance run, as LoadGen's detail log has them: any scenario, with or without tokens.

Names are the same in all scenarios: LoadGen logs the completed rate of its Server scenario under other keys than the
rate of Offline (loadgen/results.cc, PerformanceSummary::LogDetail).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from cm4vllm.common.units import (
    Milliseconds,
    Quantity,
    Queries,
    Samples,
    SamplesPerSecond,
    Seconds,
    TokensPerSample,
    TokensPerSecond,
)
from cm4vllm.records.logs.detail_log import DetailLog

#: LoadGen's scenarios (loadgen/test_settings.h).
SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline")


@dataclass(frozen=True)
class LoggedFigure:
    """One figure: its name, its value with its unit, and the keys of the log that it was read or derived from."""

    name: str
    value: Quantity
    key: str


@dataclass(frozen=True)
class _Rule:
    """The keys that hold a figure, its name, its unit, and its divisor."""

    key: re.Pattern[str]
    name: str
    unit: Callable[[float], Quantity]
    divisor: float


_NS = 1e6
_STATISTIC = r"(min|max|mean|\d+\.\d+_percentile)"
_RULES = tuple(
    _Rule(re.compile(key), name, unit, divisor)
    for key, name, unit, divisor in (
        (r"result_query_count", "queries", Queries, 1),
        (r"result_overlatency_query_count", "overlatency_queries", Queries, 1),
        (r"result_(?:samples_per_second|completed_samples_per_sec)", "samples_per_second", SamplesPerSecond, 1),
        (r"result_scheduled_samples_per_sec", "scheduled_samples_per_second", SamplesPerSecond, 1),
        (r"result_(?:completed_)?tokens_per_second", "tokens_per_second", TokensPerSecond, 1),
        (r"result_inferred_(?:completed_)?tokens_per_second", "inferred_tokens_per_second", TokensPerSecond, 1),
        (r"result_qps_with_loadgen_overhead", "samples_per_second", SamplesPerSecond, 1),
        (rf"result_{_STATISTIC}_latency_ns", r"latency_\1", Milliseconds, _NS),
        (rf"result_{_STATISTIC}(?:_per)?_query_latency_ns", r"query_latency_\1", Milliseconds, _NS),
        (rf"result_first_token_{_STATISTIC}_latency_ns", r"ttft_\1", Milliseconds, _NS),
        (rf"result_time_per_output_token_{_STATISTIC}_ns", r"tpot_\1", Milliseconds, _NS),
        (r"result_time_to_output_token_(min|max|mean)", r"tpot_\1", Milliseconds, _NS),
        (r"early_stopping_latency_(ss|ms)", r"early_stopping_latency_\1", Milliseconds, _NS),
    )
)

#: The mean and the least time per output token.
_TPOT_MEAN, _TPOT_LEAST = "result_time_to_output_token_mean", "result_time_to_output_token_min"
#: The beginnings of the keys of what a run measured.
_RESULTS = ("result_", "early_stopping_latency_")
#: LoadGen's words for an answer of one token, which has no time per output token (loadgen/logging.cc).
_OF_ONE = "Number of tokens need to be greater than 1"

#: By which figure the results of a LoadGen scenario are compared, the first one that the log has
#: (tools/submission/submission_checker/constants.py, RESULT_FIELD_NEW and RESULT_FIELD_BENCHMARK_OVERWRITE). With token
#: latencies LoadGen writes the early-stopping estimate of TTFT over that of the latency.
_METRICS = {
    ("Offline", True): ("tokens_per_second",),
    ("Offline", False): ("inferred_tokens_per_second", "samples_per_second"),
    ("Server", True): ("tokens_per_second",),
    ("Server", False): ("inferred_tokens_per_second", "samples_per_second"),
    ("SingleStream", True): ("latency_p90",),
    ("SingleStream", False): ("early_stopping_latency_ss", "latency_p90"),
    ("MultiStream", True): ("query_latency_p99",),
    ("MultiStream", False): ("early_stopping_latency_ms", "query_latency_p99"),
}


def figures(log: DetailLog) -> dict[str, LoggedFigure]:
    """Return all figures of a performance log by name; what has no finite value, or a negative one, is left out.

    Raises RunFailed where the value of one is no number.
    """
    logged = {figure.name: figure for figure in _logged_figures(log)}
    return logged | {figure.name: figure for figure in _derived_figures(log, logged)}


def undefined_keys(log: DetailLog) -> list[str]:
    """Return the keys of the figures for which LoadGen could compute no value."""
    return [key for key in log.values if log.is_undefined(key) and any(rule.key.fullmatch(key) for rule in _RULES)]


def negative_keys(log: DetailLog) -> list[str]:
    """Return the keys of all numbers of a result that are below 0, but for times per output token of one token.

    Of these LoadGen logs an error, and computes a number that means nothing (loadgen/logging.cc).
    """
    of_one_token = any(_OF_ONE in text for text in log.errors)
    return [
        key
        for key in log.values
        if key.startswith(_RESULTS)
        and log.is_negative(key)
        and not (of_one_token and any(rule.name.startswith("tpot") for rule, _ in _meanings(key)))
    ]


def metric_names(scenario: str, *, tokens: bool) -> tuple[str, ...]:
    """Return by which figure results of LoadGen's scenario `scenario` are compared, in order of preference."""
    return _METRICS.get((scenario, tokens), ())


def _logged_figures(log: DetailLog) -> Iterator[LoggedFigure]:
    """Yield each figure that LoadGen logged with a usable value, in its unit."""
    for key in log.values:
        for rule, name in _meanings(key):
            if not (log.is_undefined(key) or log.is_negative(key) or _of_one_token(log, rule, key)):
                yield LoggedFigure(name, rule.unit(log.number(key) / rule.divisor), key)
                break


def _of_one_token(log: DetailLog, rule: _Rule, key: str) -> bool:
    """Return True if a figure is LoadGen's time per token of answers of one token: negative, or a mean of such."""
    return rule.name.startswith("tpot") and (
        log.is_negative(key) or (key == _TPOT_MEAN and log.is_negative(_TPOT_LEAST))
    )


def one_token_words(log: DetailLog) -> str:
    """Return in words the figures computed of answers of one token, which have no time per output token.

    Empty where there are none.
    """
    keys = [key for key in log.values if any(_of_one_token(log, rule, key) for rule, _ in _meanings(key))]
    if not keys:
        return ""
    return (
        f"LoadGen's {keys[0]} is {log.values[keys[0]]}: it computes a negative time per output token of answers of one "
        f"token, which have none; {len(keys)} such figures are left out"
    )


@lru_cache(maxsize=2048)
def _meanings(key: str) -> tuple[tuple[_Rule, str], ...]:
    """Return the rules of the figure that a key has, and its name by each: the same for all logs of a LoadGen."""
    matches = ((rule, rule.key.fullmatch(key)) for rule in _RULES)
    return tuple(
        (rule, _short_name(match.expand(rule.name) if match.groups() else rule.name))
        for rule, match in matches
        if match
    )


def _short_name(name: str) -> str:
    """Return the name that the rules use for a percentile: ttft_p99 for ttft_99.00_percentile."""
    return re.sub(
        r"_(\d+)\.(\d+)_percentile$", lambda m: f"_p{m[1]}" + (f".{m[2].rstrip('0')}" if m[2].strip("0") else ""), name
    )


def _derived_figures(log: DetailLog, logged: dict[str, LoggedFigure]) -> Iterator[LoggedFigure]:
    """Yield the number of samples, the tokens of one, and the run's duration, to the six digits of LoadGen's rates.

    Offline is one query, whose latency is the duration; elsewhere LoadGen divides one sample less by the time.
    """
    queries, each = log.count_or_none("result_query_count"), log.count_or_none("generated_samples_per_query")
    if queries is None:
        return
    samples = queries * (each or 1)
    counted = "result_query_count, generated_samples_per_query"
    yield LoggedFigure("samples", Samples(samples), counted)
    rate, tokens = logged.get("samples_per_second"), logged.get("tokens_per_second")
    duration: LoggedFigure | None = None
    if log.is_defined("result_samples_per_second") and log.is_defined("result_max_latency_ns"):
        duration = LoggedFigure("duration", Seconds(log.number("result_max_latency_ns") / 1e9), "result_max_latency_ns")
    elif rate is not None and rate.value:
        duration = LoggedFigure("duration", Seconds((samples - 1) / rate.value), f"result_query_count, {rate.key}")
    if duration is not None:
        yield duration
    if duration is not None and tokens is not None and samples:
        each_has = TokensPerSample(tokens.value * duration.value / samples)
        keys = dict.fromkeys([tokens.key, *duration.key.split(", "), *counted.split(", ")])
        yield LoggedFigure("tokens_per_sample", each_has, ", ".join(keys))
