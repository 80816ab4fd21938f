"""LoadGen's own logs, read into typed values: what a run measured, and what it answered."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cm4vllm.common.errors import RunFailed
from cm4vllm.common.files import open_file
from cm4vllm.common.units import Quantity, SamplesPerSecond, Seconds
from cm4vllm.records.logs.answers import AccuracyEntry, entries_of
from cm4vllm.records.logs.detail_log import DETAIL_LOG, DetailLog, read_detail_log
from cm4vllm.records.logs.figures import (
    SCENARIOS,
    LoggedFigure,
    figures,
    negative_keys,
    one_token_words,
    undefined_keys,
)
from cm4vllm.records.logs.impossible_values import impossible_values
from cm4vllm.rules import Mode

SUMMARY_LOG = "mlperf_log_summary.txt"
ACCURACY_LOG = "mlperf_log_accuracy.json"
#: The file beside the logs by which LoadGen overrides its settings for a compliance test.
AUDIT_CONFIG = "audit.config"
#: The beginning of the reason against a result with a value that no run has.
IMPOSSIBLE = "impossible"
W = TypeVar("W", np.uint8, np.int32, np.int64)
_AGAIN = "remove the run's folder and run it again"


@dataclass(frozen=True)
class PerformanceResult:
    """LoadGen's result of one performance run.

    `scenario` is LoadGen's own. `figures` are all of the log, by their names in logs/figures.py: TTFT and TPOT are not
    among them in Offline, where LoadGen does not measure them. `samples_per_second` is the rate that the rules compare:
    all samples over the whole run in Offline, completed ones in Server. In Server, LoadGen divides one sample less by
    the same time (loadgen/results.cc).
    It is `valid` when LoadGen says VALID, and neither its own figures nor an error entry speak against it. `reasons`
    says what does, one reason each. `errors` counts LoadGen's error entries.
    `seeds` are those that LoadGen used: qsl, sample index, schedule.
    `duration` is derived in Server: (samples - 1) / samples_per_second, to the six digits that LoadGen prints.
    `note` names the figures that are left out because LoadGen computed them of answers of one token.
    """

    scenario: str
    valid: bool
    reasons: tuple[str, ...]
    figures: Mapping[str, Quantity]
    samples: int
    samples_per_second: SamplesPerSecond
    duration: Seconds
    min_duration: Seconds
    target_qps: float
    errors: int
    seeds: tuple[int, int, int]
    loadgen_version: str
    note: str = ""


def read_performance(folder: Path) -> PerformanceResult:
    """Read the result of the performance run in `folder`.

    Raises RunFailed when the detail log is missing, ends before the result, as after a run that was killed, has values
    of other types than LoadGen writes, or is not the log of one run alone.
    """
    return _result(read_detail_log(folder / DETAIL_LOG))


def require_whole(folder: Path, mode: Mode) -> DetailLog:
    """Return the detail log in `folder`. Raises RunFailed unless a run of this mode that went to its end wrote it."""
    detail = read_detail_log(folder / DETAIL_LOG)
    if mode is Mode.PERFORMANCE:
        _result(detail)
    else:
        detail.require_end("power_end")  # LoadGen logs it in every mode, when the last query is answered
        _require_closed(folder / ACCURACY_LOG)
    return detail


def read_accuracy_log(path: Path) -> Iterator[tuple[int, npt.NDArray[np.int32], int]]:
    """Yield each entry of an accuracy log: index in the dataset, token ids, number of tokens.

    Raises RunFailed when the log is truncated or not one, and when its tokens were written with 64 bits.
    """
    entries = _entries(path, np.int32)
    _require_int32(path, entries)
    for entry, ids in entries:
        yield entry.qsl_idx, ids, len(ids)


def read_label_log(path: Path, labels: str) -> Iterator[tuple[int, str, int]]:
    """Yield each entry of an accuracy log of int64 labels: index in the dataset, text, number of tokens.

    `labels` are the characters that the log numbers. Raises RunFailed when the log is truncated or not one.
    """
    for entry, numbers in _entries(path, np.int64):
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(labels):
            raise RunFailed(
                f"{path} has labels outside 0 to {len(labels) - 1}",
                cause=f"sample {entry.qsl_idx}",
                remedy="write int64 labels to LoadGen",
            )
        yield entry.qsl_idx, "".join(labels[number] for number in numbers), entry.token_count or 0


def read_text_log(path: Path) -> Iterator[tuple[int, str, int]]:
    """Yield each entry of an accuracy log of UTF-8 text: index in the dataset, text, number of tokens.

    Raises RunFailed when the log is truncated, not one, or its answers are no UTF-8.
    """
    for entry, data in _entries(path, np.uint8):
        try:
            text = data.tobytes().decode()
        except UnicodeDecodeError as error:
            raise RunFailed(
                f"{path} holds answers that are no UTF-8 text",
                cause=f"sample {entry.qsl_idx}: {error}",
                remedy="write the text of answers to LoadGen",
            ) from error
        yield entry.qsl_idx, text, entry.token_count or 0


def _entries(path: Path, width: type[W]) -> list[tuple[AccuracyEntry, npt.NDArray[W]]]:
    """Return the entries of an accuracy log, each with its data as integers of this width. Raises RunFailed."""
    return entries_of(path, lambda entry: (entry, np.frombuffer(bytes.fromhex(entry.data), width)))


def _require_int32(path: Path, entries: list[tuple[AccuracyEntry, npt.NDArray[np.int32]]]) -> None:
    """Refuse 64-bit tokens read as 32-bit ones: their second words are zero, and there are twice as many.

    An id above 32 bits has a second word, and a damaged answer an odd number of words: most of the log counts.
    """
    tokens = [ids for _, ids in entries]
    counted = [(entry.token_count, len(ids)) for entry, ids in entries if entry.token_count and entry.data]
    cause = ""
    even = [ids for ids in tokens if len(ids) % 2 == 0]  # an odd number of words cannot be 64-bit integers
    if sum(map(len, even)) * 2 > sum(map(len, tokens)) and _zero_share(even, 1) > 0.5 > _zero_share(even, 0):
        cause = "most of every second 32-bit word is zero: the tokens have 64 bits"
    elif any(count != converted for count, converted in counted):
        cause = "token_count and the length of the data disagree"
    elif any(len(ids) and ids.min() < 0 for ids in tokens):
        cause = "there are negative ones, which no tokenizer has"
    if cause:
        raise RunFailed(
            f"the tokens in {path} are not 32-bit integers",
            cause=cause,
            remedy="write int32 tokens to LoadGen; a score of this log would count wrong tokens",
        )


def _zero_share(tokens: list[npt.NDArray[np.int32]], first: int) -> float:
    """Return the share in [0..1] of zeros among every second word, starting from word `first` of each answer."""
    words = np.concatenate([ids[first::2] for ids in tokens])
    return float(np.mean(words == 0)) if len(words) else 0.0


def _require_closed(path: Path) -> None:
    """Refuse an accuracy log that does not end where LoadGen ends it: its array is closed."""
    try:
        with open_file(path) as file:
            file.seek(max(0, path.stat().st_size - 16))
            end = file.read().rstrip()
    except OSError as error:
        raise RunFailed(f"cannot read the accuracy log {path}", cause=str(error.strerror)) from error
    if not end.endswith(b"]"):
        raise RunFailed(f"{path} is not a whole accuracy log", cause="its list has no end", remedy=_AGAIN)


def verdict(log: DetailLog) -> tuple[bool, tuple[str, ...]]:
    """Return True for the log of a valid performance result of its scenario, and the reasons against it.

    Raises RunFailed when the log ends before its result, or is of no scenario of LoadGen.
    """
    if (scenario := log.text("effective_scenario")) not in SCENARIOS:
        raise RunFailed(f"{log.path} is the log of the scenario {scenario}", cause=f"known: {', '.join(SCENARIOS)}")
    said, reasons = log.text("result_validity"), tuple(_reasons(log))
    log.require_end("result_validity")
    return said == "VALID" and not reasons, reasons


def _result(log: DetailLog) -> PerformanceResult:
    """Return figures and verdict of the log of a performance run. Raises RunFailed for one that did not end."""
    scenario, logged = log.text("effective_scenario"), {name: figure.value for name, figure in figures(log).items()}
    valid, reasons = verdict(log)
    # Where errors are not counted, the tokens alone tell a whole log from one that was cut.
    for name in (*([] if log.counts_errors else ["tokens_per_second"]), "samples", "samples_per_second"):
        if name not in logged and not negative_keys(log):
            raise RunFailed(
                f"{log.path} is not the log of a performance run that ended", cause=f"it has no {name}", remedy=_AGAIN
            )
    return PerformanceResult(
        scenario=scenario,
        valid=valid,
        reasons=reasons,
        figures=logged,
        samples=int(logged["samples"]),
        samples_per_second=SamplesPerSecond(logged.get("samples_per_second", 0.0)),
        duration=Seconds(logged.get("duration", 0.0)),
        min_duration=Seconds(log.number("effective_min_duration_ms") / 1e3),
        target_qps=log.number("effective_target_qps"),
        errors=log.error_count,
        seeds=(
            log.count("effective_qsl_rng_seed"),
            log.count("effective_sample_index_rng_seed"),
            log.count("effective_schedule_rng_seed"),
        ),
        loadgen_version=log.text("loadgen_version"),
        note=one_token_words(log),
    )


#: The scenario in which LoadGen judges latency limits (loadgen/results.cc, HasPerfConstraints).
_LIMITED = "Server"


def _reasons(log: DetailLog) -> Iterator[str]:
    """Yield each reason why a performance run is not valid."""
    logged = figures(log)
    yield from (f"LoadGen could compute no value for {key}" for key in undefined_keys(log))
    yield from (f"{IMPOSSIBLE}: {value}" for value in impossible_values(log))
    if not log.flag("result_min_duration_met"):
        wanted = Seconds(log.number("effective_min_duration_ms") / 1e3)
        yield f"minimum duration not met: {_value(logged, 'duration')} of {wanted}"
    if not log.flag("result_min_queries_met"):
        yield "minimum number of queries not met: the test ended early"
    if log.text("effective_scenario") == _LIMITED and not log.flag("result_perf_constraints_met"):
        limits = {"TTFT": "ttft_p99", "TPOT": "tpot_p99"} if "ttft_p99" in logged else {"latency": "latency_p99"}
        yield "latency limits exceeded: " + ", ".join(f"{n} p99 {_value(logged, key)}" for n, key in limits.items())
    if not log.flag("early_stopping_met"):
        yield f"early stopping not satisfied: {_early_stopping(log)}"
    yield from (f"LoadGen error: {text}" for text in dict.fromkeys(log.errors))
    if log.error_count and not log.errors:
        yield f"LoadGen counted {log.error_count} errors"


def _value(logged: Mapping[str, LoggedFigure], name: str) -> str:
    return str(logged[name].value) if name in logged else "unknown"


def _early_stopping(log: DetailLog) -> str:
    """Return LoadGen's words on early stopping for TPOT and TTFT, or for the latency, in one line."""
    said = []
    for key, subject in (
        ("early_stopping_tpot_result", "TPOT: "),
        ("early_stopping_ttft_result", "TTFT: "),
        ("early_stopping_result", ""),
    ):
        text = " ".join((log.text_or_none(key) or "").replace("*", " ").split())
        if text and "Run successful" not in text:
            said.append(f"{subject}{text.removeprefix('Run unsuccessful. ')}")
    return "; ".join(said) or "too few queries"
