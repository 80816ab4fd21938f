"""The figures of one run: in its detail log against each other, and in the summary beside it, which states the same."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.records.logs.detail_log import DetailLog
from cm4vllm.records.logs.impossible_values import SUM_END, LogNumbers, impossible_figures
from cm4vllm.records.logs.run_logs import SUMMARY_LOG
from cm4vllm.results.checks.subjects import Part, with_tests
from cm4vllm.results.log_folders import text_at
from cm4vllm.results.model import Accuracy, Performance

#: The words of LoadGen for a run that early stopping judges as too short (loadgen/early_stopping.cc).
UNSUCCESSFUL = "Run unsuccessful"

#: The part by which two figures may differ: each rate has six digits.
_DIGITS = 2e-5
#: LoadGen plans this many times the samples of the target rate, so that an Offline run is long enough.
_SLACK = 1.1
#: A target rate has six digits.
_ROUNDED = 1e-4
#: The difference allowed between the rate of a schedule and its target: deviations of its random intervals, and a part
#: of the target for LoadGen's rounding (at most 0.04 % in 1,564 published schedules, 3 deviations in short ones).
_DEVIATIONS, _OF_TARGET = 6.0, 0.002
#: The mean intervals by which the last query may be earlier than the end of the generated schedule.
_LAST = 40.0
#: A summary has about 3 KB; one that is far longer is none.
_MAX_SUMMARY = 2**20
#: The part by which a figure may differ beside the digits that the summary has: rates in detail logs have six.
_ROUNDING = 1e-5
_NUMBER = re.compile(r"-?\d+(?:\.(\d+))?(?:e[+-]?\d+)?")
_PERCENTILE = re.compile(r"(\d{1,3})\.(\d{1,9}) percentile")
#: A line's label, as a pattern, and the name of the figure or setting (loadgen/results.cc, LogSummary). Figures in ns
#: are in ms in the model.
_LABELS = tuple(
    (re.compile(label), name, scale)
    for label, name, scale in (
        (r"(?:Completed )?[Ss]amples per second", "samples_per_second", 1.0),
        (r"QPS w/ loadgen overhead", "samples_per_second", 1.0),
        (r"Scheduled samples per second", "scheduled_samples_per_second", 1.0),
        (r"(?:Completed )?[Tt]okens per second", "tokens_per_second", 1.0),
        (r"(\S+) latency \(ns\)", "latency", 1e6),
        (r"(\S+) [Ff]irst [Tt]oken latency \(ns\)", "ttft", 1e6),
        (r"(\S+) [Tt]ime (?:to|per) [Oo]utput [Tt]oken \(ns\)", "tpot", 1e6),
    )
)
#: Texts of a summary, and the setting of the detail log that has each. Others have the name that the summary has, with
#: its unit: `min_duration (ms)` is min_duration_ms.
_SETTINGS = {
    "SUT name": "sut_name",
    "Scenario": "scenario",
    "Mode": "test_mode",
    "ttft_latency (ns)": "requested_server_ttft_latency",
    "tpot_latency (ns)": "requested_server_tpot_latency",
}
#: Verdicts of a summary, and the entry of the detail log that has each.
_VERDICTS = {
    "Performance constraints satisfied": "result_perf_constraints_met",
    "Min duration satisfied": "result_min_duration_met",
    "Min queries satisfied": "result_min_queries_met",
    "Early stopping satisfied": "early_stopping_met",
}
#: The last lines of a summary: how many warnings and errors there were.
_ENTRIES = re.compile(r"^(No|\d+) (error|warning)s? encountered", re.IGNORECASE)
_SOME = {True: "some", False: "none"}
_UNIT = re.compile(r" \((ns|ms)\)$")


@check(
    "LOG-FIGURES",
    source="loadgen/results.cc, PerformanceSummary",
    remedy="publish the log as LoadGen wrote it",
    stage=Stage.TREE,
    each=with_tests,
)
def agree(part: Part) -> Iterator[Fault]:
    """The figures of a log agree with each other: rates, counts, durations, latencies and verdicts are of one run."""
    if (
        isinstance(part, Performance)
        and part.detail is not None
        and (apart := list(_contradictions(part.detail, part.log)))
    ):
        more = f"; {len(apart) - 1} more contradictions" if len(apart) > 1 else ""
        yield replace(apart[0], what=f"{apart[0].what}{more}")


def _contradictions(detail: DetailLog, file: str) -> Iterator[Fault]:
    yield from (Fault(value.what, file, value.key, value.value, value.expected) for value in impossible_figures(detail))
    log = LogNumbers(detail, file)
    for contradictions in (_counts, _rates, _tokens, _verdicts):
        yield from contradictions(log)


def _counts(log: LogNumbers) -> Iterator[Fault]:
    made, issued = log["generated_query_count"], log["result_query_count"]
    if log.scenario == "Server" and made and made != issued:
        yield Fault("another number of queries than was generated", log.file, "result_query_count", issued, made)
    if log.scenario == "Offline":
        least, each = log["effective_min_sample_count"], log["effective_samples_per_query"]
        if least and each and each != least:
            yield Fault(
                "another number of samples than is asked for", log.file, "effective_samples_per_query", each, least
            )
        if log["effective_min_query_count"] > 1:
            yield Fault(
                "Offline has one query", log.file, "effective_min_query_count", log["effective_min_query_count"], 1
            )
        yield from _sample_count_faults(log, each)


def _sample_count_faults(log: LogNumbers, each: float) -> Iterator[Fault]:
    """Compare the samples of an Offline run with the number that its target rate and its minimum duration require."""
    wanted = max(log["requested_min_query_count"], _SLACK * log["effective_target_qps"] * _least_s(log))
    sizes = {wanted}
    if (
        log.flag("effective_sample_concatenate_permutation") is not False
    ):  # whole data sets, so that all are equally often
        whole = max(log["effective_performance_sample_count"], 1.0)
        sizes.add(math.ceil(wanted / whole) * whole)
    planned = any(abs(each - size) <= 1 + _ROUNDED * size for size in sizes)
    if each and not planned and not log["effective_max_query_count"]:
        yield Fault(
            "not the samples that target rate and least duration ask for",
            log.file,
            "effective_samples_per_query",
            each,
            f"{wanted:,.0f}, of target_qps {log['effective_target_qps']:g} for {_least_s(log):g} s",
        )


def _rates(log: LogNumbers) -> Iterator[Fault]:
    yield from _offline_rate(log)
    yield from _server_rates(log)
    alone, mean = log["result_qps_without_loadgen_overhead"], log["result_mean_latency_ns"]
    if alone and mean and log.samples * log["result_max_latency_ns"] < SUM_END and not _close(alone * mean / 1e9, 1.0):
        yield Fault(
            "samples/s without overhead is not one over the mean latency",
            log.file,
            "result_qps_without_loadgen_overhead",
            alone,
            f"{1e9 / mean:.6g}",
        )


def _offline_rate(log: LogNumbers) -> Iterator[Fault]:
    samples = log.samples
    if log.scenario == "Offline" and (rate := log["result_samples_per_second"]):
        done = rate * log["result_max_latency_ns"] / 1e9
        # LoadGen before 5.0 counts whole data sets of a run that issues all samples equally often.
        whole = log["effective_performance_sample_count"] or log["qsl_reported_performance_count"] or 1
        whole = math.ceil(samples / whole) * whole
        rounded = log.flag("effective_sample_concatenate_permutation") is not False and _close(done, whole)
        if not _close(done, samples) and not rounded:
            yield Fault(
                "samples/s times the duration is not the number of samples",
                log.file,
                "result_samples_per_second",
                f"{done:,.1f} samples",
                f"{samples:,.0f}",
            )


def _server_rates(log: LogNumbers) -> Iterator[Fault]:
    samples = log.samples
    if log.scenario == "Server" and (rate := log["result_scheduled_samples_per_sec"]):
        planned, made = (samples - 1) / rate, log["generated_query_duration"] / 1e9
        # The last query is scheduled before the end of what was generated, by a few mean intervals.
        if made and not made * (1 - _DIGITS - _LAST / max(samples, 1)) <= planned <= made * (1 + _DIGITS):
            yield Fault(
                "the scheduled rate is not that of the generated queries",
                log.file,
                "result_scheduled_samples_per_sec",
                f"{planned:,.3f} s",
                f"{made:,.3f} s, generated_query_duration",
            )
        target = log["effective_target_qps"]
        if target and abs(rate / target - 1) > _DEVIATIONS / math.sqrt(max(samples, 1)) + _OF_TARGET:
            yield Fault(
                "the scheduled rate is not the target", log.file, "result_scheduled_samples_per_sec", rate, target
            )
        ended = log["result_completed_samples_per_sec"] and (samples - 1) / log["result_completed_samples_per_sec"]
        latest = planned + log["result_max_latency_ns"] / 1e9
        if ended and not planned * (1 - _DIGITS) <= ended <= latest * (1 + _DIGITS) + 0.1:
            yield Fault(
                "the last answer is before the last query, or later than the largest latency allows",
                log.file,
                "result_completed_samples_per_sec",
                f"{ended:,.3f} s",
                f"{planned:,.3f} to {latest:,.3f} s",
            )


def _tokens(log: LogNumbers) -> Iterator[Fault]:
    """Compare the number of tokens that each of LoadGen's token rates makes."""
    rate, samples = log["result_completed_samples_per_sec"], log.samples
    if not rate or not (per_second := log["result_completed_tokens_per_second"]):
        return
    tokens = per_second * (samples - 1) / rate
    by_latency = log["result_token_throughput"] * log["result_mean_latency_ns"] * samples
    if by_latency and samples * log["result_max_latency_ns"] < SUM_END and not _close(tokens, by_latency):
        yield Fault(
            "tokens/s and samples/s make another number of tokens than the mean latency",
            log.file,
            "result_completed_tokens_per_second",
            f"{tokens:,.0f} tokens",
            f"{by_latency:,.0f}, result_token_throughput",
        )


def _verdicts(log: LogNumbers) -> Iterator[Fault]:
    lasted, least = _duration_s(log), _least_s(log)
    said = log.flag("result_min_duration_met")
    if lasted and least and said is not None and abs(lasted - least) > 1e-5 * least and said != (lasted >= least):
        yield Fault(
            "the verdict on the duration is wrong", log.file, "result_min_duration_met", said, f"{lasted:,.1f} s"
        )
    said, asked = log.flag("result_min_queries_met"), log["effective_min_query_count"]
    if said and asked and log["result_query_count"] < asked:
        yield Fault("the verdict on the number of queries is wrong", log.file, "result_min_queries_met", said, False)
    said = log.flag("result_perf_constraints_met")
    yield from (
        Fault("the verdict on the limits is wrong", log.file, key, log[key], f"{log[limit]:.15g} or less")
        for key, limit in (
            ("result_first_token_99.00_percentile_latency_ns", "requested_server_ttft_latency"),
            ("result_time_per_output_token_99.00_percentile_ns", "requested_server_tpot_latency"),
        )
        if said and log.scenario == "Server" and log[limit] and log[key] > log[limit]
    )
    verdicts = ("result_min_duration_met", "result_min_queries_met", "result_perf_constraints_met")
    failed = [
        key for key, value in log.values.items() if key.startswith("early_stopping_") and UNSUCCESSFUL in str(value)
    ]
    if failed and log.flag("early_stopping_met"):
        yield Fault(
            "the verdict on early stopping is wrong",
            log.file,
            "early_stopping_met",
            True,
            f"false, as {failed[0]} says",
        )
    missed = [key for key in verdicts if log.flag(key) is False]
    if missed and log.values.get("result_validity") == "VALID":
        yield Fault("a valid result missed a condition", log.file, missed[0], False, True)


def _least_s(log: LogNumbers) -> float:
    return log["effective_min_duration_ms"] / 1e3


def _duration_s(log: LogNumbers) -> float:
    """Return in s what LoadGen compares with the minimum duration; 0 where the log does not tell."""
    if log.scenario == "Offline":
        return log["result_max_latency_ns"] / 1e9
    rate = log["result_scheduled_samples_per_sec"] or log["result_qps_with_loadgen_overhead"]
    return (log.samples - 1) / rate if rate else 0.0


def _close(value: float, other: float) -> bool:
    return abs(value - other) <= _DIGITS * max(abs(value), abs(other))


class _Stated(NamedTuple):
    """One line of a summary, and the value of the detail log that belongs to it."""

    label: str
    text: str
    logged: float | int | str

    @property
    def same(self) -> bool:
        if isinstance(self.logged, str) or (isinstance(self.logged, int) and self.text.isdecimal()):
            return self.text == str(self.logged)
        if not (number := _NUMBER.fullmatch(self.text)):
            return True  # LoadGen could compute no value
        digit = 10.0 ** -len(number[1] or "")
        return abs(float(self.text) - self.logged) <= 0.51 * digit + _ROUNDING * abs(self.logged)


@check(
    "SUMMARY-DIFFERS",
    source="loadgen/results.cc, LogSummary and LogDetail",
    remedy="publish both logs of the run that is meant, as LoadGen wrote them",
    stage=Stage.TREE,
    each=with_tests,
)
def one_run(part: Part) -> Iterator[Fault]:
    """Summary and detail log are of one run: they state the same figures."""
    stated = list(_stated_lines(part))
    apart = [line for line in stated if not line.same]
    if apart:
        yield Fault(
            f"{len(apart)} of the {len(stated)} values that the summary shares with the detail log are others",
            part.beside(SUMMARY_LOG),
            apart[0].label,
            apart[0].text,
            f"{apart[0].logged:.15g}" if isinstance(apart[0].logged, float) else apart[0].logged,
        )


def _stated_lines(part: Part) -> Iterator[_Stated]:
    """Yield the lines of a run's summary that the detail log has a value for; none where there is no summary."""
    lines = text_at(part.folder / SUMMARY_LOG, _MAX_SUMMARY).splitlines()
    if not lines:
        return  # RESULT-FILES
    yield from _entries(part, lines)
    for line in lines:
        label, text = _label_and_text(line)
        if text:
            value = _setting(part, label) if isinstance(part, Accuracy) else _logged_value(part, label)
            if value is not None:
                yield _Stated(label, text, value)


def _label_and_text(line: str) -> tuple[str, str]:
    """Return what stands before and behind the last colon with a space behind it; two empty texts without one."""
    label, _, text = line.rpartition(": ")
    return ("", "") if ":" in text else (label.strip(), text.strip())


def _entries(part: Part, lines: list[str]) -> Iterator[_Stated]:
    """Yield the summary's lines on warnings and errors, and on early stopping if it failed."""
    if part.detail is None:
        return
    logged = {"error": part.detail.error_count > 0, "warning": bool(part.detail.warnings)}
    for line in lines:
        if match := _ENTRIES.match(line):
            said, kind = match[1].lower() != "no", match[2].lower()
            yield _Stated(f"{kind}s", _SOME[said], _SOME[logged[kind]])
    failed = any(UNSUCCESSFUL in str(value) for value in part.detail.values.values())
    said = any(UNSUCCESSFUL in line for line in lines)
    if said or failed:
        yield _Stated("early stopping", UNSUCCESSFUL if said else "", UNSUCCESSFUL if failed else "")


def _logged_value(part: Performance, label: str) -> float | int | str | None:
    """Return the detail log's value for a line of the summary; None where the line is about another figure."""
    if label == "Result is" and part.loadgen_valid:
        return "VALID"  # what the detail log says against it is RESULT-INVALID's
    if label in _VERDICTS:
        met = part.detail.values.get(_VERDICTS[label]) if part.detail else None
        return ("Yes" if met else "NO") if isinstance(met, bool) else None
    short = _PERCENTILE.sub(
        lambda percentile: f"p{percentile[1]}" + (f".{percentile[2].rstrip('0')}" if percentile[2].strip("0") else ""),
        label,
    )
    for pattern, name, scale in _LABELS:
        if match := pattern.fullmatch(short):
            full = f"{name}_{match[1].lower()}" if match.groups() else name
            names = (f"query_{full}", full) if name == "latency" else (full,)
            figure = next((part.figures[name] for name in names if name in part.figures), None)
            return None if figure is None else float(figure.value) * scale
    return _setting(part, label)


def _setting(part: Part, label: str) -> float | int | str | None:
    value = part.settings.get(_SETTINGS.get(label) or _UNIT.sub(r"_\1", label))
    return int(value) if isinstance(value, bool) else value if isinstance(value, int | float | str) else None
