"""LoadGen's own logs, read into typed values: what a run measured, and what it answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cm4vllm.common.errors import RunFailed
from cm4vllm.common.units import Milliseconds, SamplesPerSecond, Seconds, TokensPerSecond
from cm4vllm.rules.scenarios import Scenario

__all__ = [
    "ACCURACY_LOG",
    "DETAIL_LOG",
    "SUMMARY_LOG",
    "AccuracyEntry",
    "PerformanceResult",
    "loadgen_version",
    "read_accuracy_log",
    "read_performance",
]

DETAIL_LOG = "mlperf_log_detail.txt"
SUMMARY_LOG = "mlperf_log_summary.txt"
ACCURACY_LOG = "mlperf_log_accuracy.json"

_PREFIX = ":::MLLOG "


@dataclass(frozen=True)
class PerformanceResult:
    """What LoadGen says of one performance run.

    `samples_per_second` and `tokens_per_second` are those the rules compare: all samples over the whole run in Offline,
    completed ones in Server. In Server, LoadGen divides one sample less by the same time (loadgen/results.cc).
    `reasons` says why the result is not valid, one reason each. `errors` counts LoadGen's error entries.
    TTFT and TPOT are None in Offline, where LoadGen does not measure them.
    `duration` is derived in Server: (samples - 1) / samples_per_second, to the six digits that LoadGen prints.
    """

    scenario: Scenario
    valid: bool
    reasons: tuple[str, ...]
    samples: int
    queries: int
    samples_per_second: SamplesPerSecond
    tokens_per_second: TokensPerSecond
    scheduled_samples_per_second: SamplesPerSecond | None
    ttft_p99: Milliseconds | None
    ttft_mean: Milliseconds | None
    tpot_p99: Milliseconds | None
    tpot_mean: Milliseconds | None
    duration: Seconds
    min_duration: Seconds
    target_qps: float
    errors: int
    seeds: tuple[int, int, int]
    loadgen_version: str


class AccuracyEntry(msgspec.Struct, frozen=True):
    """One entry of mlperf_log_accuracy.json. `data` holds the tokens' bytes in hexadecimal."""

    seq_id: int
    qsl_idx: int
    data: str
    token_count: int | None = None


def read_performance(folder: Path) -> PerformanceResult:
    """Read the result of the performance run in `folder`.

    Raises RunFailed when the detail log is missing or ends before the result, as after a run that was killed.
    """
    path = folder / DETAIL_LOG
    entries, errors = _read_detail(path)
    try:
        return _result(entries, errors)
    except KeyError as error:
        raise RunFailed(
            f"{path} is not the log of a performance run that ended", cause=f"it has no {error.args[0]}",
            remedy="remove the run's folder and run it again",
        ) from error


def loadgen_version(folder: Path) -> str:
    """Return the version of LoadGen that wrote the logs in `folder`, as they name it."""
    entries, _ = _read_detail(folder / DETAIL_LOG)
    return str(entries.get("loadgen_version", ""))


def read_accuracy_log(path: Path) -> Iterator[tuple[int, npt.NDArray[np.int32], int]]:
    """Give each entry of an accuracy log: index in the dataset, token ids, number of tokens.

    Raises RunFailed when the log is truncated or not one, and when its tokens were written with 64 bits.
    """
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=list[AccuracyEntry])
        tokens = [np.frombuffer(bytes.fromhex(entry.data), np.int32) for entry in entries]
    except OSError as error:
        raise RunFailed(f"cannot read the accuracy log {path}", cause=str(error.strerror)) from error
    except (msgspec.DecodeError, ValueError) as error:
        raise RunFailed(
            f"{path} is not a whole accuracy log", cause=str(error),
            remedy="score it before it is truncated, or run the accuracy run again",
        ) from error
    _require_int32(path, entries, tokens)
    for entry, ids in zip(entries, tokens, strict=True):
        yield entry.qsl_idx, ids, len(ids)


def _require_int32(path: Path, entries: list[AccuracyEntry], tokens: list[npt.NDArray[np.int32]]) -> None:
    """Refuse 64-bit tokens read as 32-bit ones: every second word is zero, and there are twice as many."""
    even = bool(tokens) and all(len(ids) % 2 == 0 for ids in tokens)
    halves_are_zero = even and any(map(len, tokens)) and not any(ids[1::2].any() for ids in tokens)
    counted = [(e.token_count, len(ids)) for e, ids in zip(entries, tokens, strict=True) if e.token_count]
    if halves_are_zero or any(count != found for count, found in counted):
        cause = "every second 32-bit word is zero: the tokens have 64 bits" if halves_are_zero else (
            "token_count and the length of the data disagree")
        raise RunFailed(f"the tokens in {path} are not 32-bit integers", cause=cause,
                        remedy="write int32 tokens to LoadGen; a score of this log would count wrong tokens")


def _read_detail(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the entries of a detail log by key (the last of each) and the texts of its errors."""
    entries: dict[str, Any] = {}
    errors: list[str] = []
    decoder = msgspec.json.Decoder(dict[str, Any])
    try:
        with path.open("rb") as file:
            for line in file:
                if not line.startswith(_PREFIX.encode()):
                    continue
                try:
                    entry = decoder.decode(line[len(_PREFIX):])
                except msgspec.DecodeError as error:
                    raise RunFailed(f"{path} is not a whole log", cause=str(error),
                                    remedy="remove the run's folder and run it again") from error
                key = str(entry.get("key"))
                entries[key] = entry.get("value")
                if (entry.get("metadata") or {}).get("is_error"):
                    errors.append(str(entry.get("value")))
    except OSError as error:
        raise RunFailed(f"cannot read LoadGen's log {path}", cause=str(error.strerror)) from error
    return entries, errors


def _result(entries: dict[str, Any], errors: list[str]) -> PerformanceResult:
    scenario = Scenario.parse(str(entries["effective_scenario"]))
    if scenario is Scenario.OFFLINE:
        samples = int(entries["generated_samples_per_query"])
        rate, tokens = entries["result_samples_per_second"], entries["result_tokens_per_second"]
        duration = entries["result_max_latency_ns"] / 1e9
    else:
        samples = int(entries["result_query_count"])
        rate, tokens = entries["result_completed_samples_per_sec"], entries["result_completed_tokens_per_second"]
        duration = (samples - 1) / rate if rate else 0.0
    scheduled = entries.get("result_scheduled_samples_per_sec")
    result = PerformanceResult(
        scenario=scenario,  # type: ignore[arg-type]
        valid=entries["result_validity"] == "VALID" and not entries.get("num_errors", len(errors)),
        reasons=(),
        samples=samples,
        queries=int(entries["result_query_count"]),
        samples_per_second=SamplesPerSecond(rate),
        tokens_per_second=TokensPerSecond(tokens),
        scheduled_samples_per_second=None if scheduled is None else SamplesPerSecond(scheduled),
        ttft_p99=_ms(entries, "result_first_token_99.00_percentile_latency_ns"),
        ttft_mean=_ms(entries, "result_first_token_mean_latency_ns"),
        tpot_p99=_ms(entries, "result_time_per_output_token_99.00_percentile_ns"),
        tpot_mean=_ms(entries, "result_time_to_output_token_mean"),
        duration=Seconds(duration),
        min_duration=Seconds(entries["effective_min_duration_ms"] / 1e3),
        target_qps=float(entries["effective_target_qps"]),
        errors=int(entries.get("num_errors", len(errors))),
        seeds=(entries["effective_qsl_rng_seed"], entries["effective_sample_index_rng_seed"],
               entries["effective_schedule_rng_seed"]),
        loadgen_version=str(entries["loadgen_version"]),
    )
    return replace(result, reasons=tuple(_reasons(result, entries, errors)))


def _reasons(result: PerformanceResult, entries: dict[str, Any], errors: list[str]) -> Iterator[str]:
    if not entries["result_min_duration_met"]:
        yield f"minimum duration not met: {result.duration} of {result.min_duration}"
    if not entries["result_min_queries_met"]:
        yield "minimum number of queries not met: the test ended early"
    if entries.get("result_perf_constraints_met") is False:
        yield f"latency limits exceeded: TTFT p99 {result.ttft_p99}, TPOT p99 {result.tpot_p99}"
    if not entries["early_stopping_met"]:
        yield f"early stopping not satisfied: {_early_stopping(entries)}"
    distinct = dict.fromkeys(errors)
    if distinct:
        yield from (f"LoadGen error: {text}" for text in distinct)
    elif result.errors:
        yield f"LoadGen counted {result.errors} errors"


def _early_stopping(entries: dict[str, Any]) -> str:
    """Return what LoadGen says on early stopping for TPOT and TTFT, on one line."""
    said = []
    for metric in ("tpot", "ttft"):
        text = " ".join(str(entries.get(f"early_stopping_{metric}_result") or "").replace("*", " ").split())
        if text and "Run successful" not in text:
            said.append(f"{metric.upper()}: {text.removeprefix('Run unsuccessful. ')}")
    return "; ".join(said) or "too few queries"


def _ms(entries: dict[str, Any], key: str) -> Milliseconds | None:
    value = entries.get(key)
    return None if value is None else Milliseconds(value / 1e6)

