"""LoadGen's own logs, read into typed values: what a run measured, and what it answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from cm4vllm.common.errors import RunFailed
from cm4vllm.common.units import Milliseconds, SamplesPerSecond, Seconds, TokensPerSecond
from cm4vllm.loadgen.detail_log import DETAIL_LOG, DetailLog, read_detail_log
from cm4vllm.rules import Mode, Scenario

__all__ = [
    "ACCURACY_LOG",
    "DETAIL_LOG",
    "SUMMARY_LOG",
    "AccuracyEntry",
    "PerformanceResult",
    "loadgen_version",
    "read_accuracy_log",
    "read_performance",
    "require_whole",
]

SUMMARY_LOG = "mlperf_log_summary.txt"
ACCURACY_LOG = "mlperf_log_accuracy.json"


@dataclass(frozen=True)
class PerformanceResult:
    """What LoadGen says of one performance run.

    `samples_per_second` and `tokens_per_second` are those the rules compare: all samples over the whole run in Offline,
    completed ones in Server. In Server, LoadGen divides one sample less by the same time (loadgen/results.cc).
    It is `valid` when LoadGen says VALID, and neither its own figures nor an error entry speak against it. `reasons`
    says what does, one reason each. `errors` counts LoadGen's error entries.
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

    Raises RunFailed when the detail log is missing, ends before the result, as after a run that was killed, has values
    of other types than LoadGen writes, or is not the log of one run alone.
    """
    return _result(read_detail_log(folder / DETAIL_LOG))


def require_whole(folder: Path, mode: Mode) -> None:
    """Raise RunFailed unless the logs in `folder` are those of a run of this mode that went to its end."""
    if mode is Mode.PERFORMANCE:
        read_performance(folder)
        return
    detail = read_detail_log(folder / DETAIL_LOG)
    detail.require_end("power_end")  # LoadGen logs it in every mode, when the last query is answered
    _require_closed(folder / ACCURACY_LOG)


def loadgen_version(folder: Path) -> str:
    """Return the version of LoadGen that wrote the logs in `folder`, as they name it."""
    return read_detail_log(folder / DETAIL_LOG).text_or_none("loadgen_version") or ""


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
    """Refuse 64-bit tokens read as 32-bit ones: their second words are zero, and there are twice as many.

    An id above 32 bits has a second word, and a damaged answer an odd number of words: most of the log counts.
    """
    counted = [(e.token_count, len(ids)) for e, ids in zip(entries, tokens, strict=True) if e.token_count]
    cause = ""
    even = [ids for ids in tokens if len(ids) % 2 == 0]  # an odd number of words cannot be 64-bit integers
    if sum(map(len, even)) * 2 > sum(map(len, tokens)) and _zero_share(even, 1) > 0.5 > _zero_share(even, 0):
        cause = "most of every second 32-bit word is zero: the tokens have 64 bits"
    elif any(count != found for count, found in counted):
        cause = "token_count and the length of the data disagree"
    elif any(len(ids) and ids.min() < 0 for ids in tokens):
        cause = "there are negative ones, which no tokenizer has"
    if cause:
        raise RunFailed(f"the tokens in {path} are not 32-bit integers", cause=cause,
                        remedy="write int32 tokens to LoadGen; a score of this log would count wrong tokens")


def _zero_share(tokens: list[npt.NDArray[np.int32]], first: int) -> float:
    """Return which part of every second word, from the word `first` of each answer on, is zero, in [0..1]."""
    words = sum(len(ids[first::2]) for ids in tokens)
    zeros = sum(len(ids[first::2]) - int(np.count_nonzero(ids[first::2])) for ids in tokens)
    return zeros / words if words else 0.0


def _require_closed(path: Path) -> None:
    """Refuse an accuracy log that does not end where LoadGen ends it: its array is closed."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16))
            end = file.read().rstrip()
    except OSError as error:
        raise RunFailed(f"cannot read the accuracy log {path}", cause=str(error.strerror)) from error
    if not end.endswith(b"]"):
        raise RunFailed(f"{path} is not a whole accuracy log", cause="its list has no end",
                        remedy="remove the run's folder and run it again")


@dataclass(frozen=True)
class _Keys:
    """Under which keys LoadGen logs a scenario's figures (loadgen/results.cc), and whether it judges latency limits."""

    samples: str
    rate: str
    tokens: str
    duration_ns: str = ""
    limited: bool = False


_KEYS = {
    Scenario.OFFLINE: _Keys("generated_samples_per_query", "result_samples_per_second", "result_tokens_per_second",
                            duration_ns="result_max_latency_ns"),
    Scenario.SERVER: _Keys("result_query_count", "result_completed_samples_per_sec",
                           "result_completed_tokens_per_second", limited=True),
}  # fmt: skip


def _result(log: DetailLog) -> PerformanceResult:
    scenario = log.text("effective_scenario")
    keys = next((keys for known, keys in _KEYS.items() if known == scenario), None)
    if keys is None:
        raise RunFailed(f"{log.path} is the log of the scenario {scenario}", cause=f"known here: {', '.join(_KEYS)}")
    samples, rate = log.count(keys.samples), log.number(keys.rate)
    if keys.duration_ns:
        duration = log.number(keys.duration_ns) / 1e9
    else:
        duration = (samples - 1) / rate if rate else 0.0
    tokens = log.number(keys.tokens)
    scheduled = log.number_or_none("result_scheduled_samples_per_sec")
    result = PerformanceResult(
        scenario=Scenario(scenario),
        valid=False,
        reasons=(),
        samples=samples,
        queries=log.count("result_query_count"),
        samples_per_second=SamplesPerSecond(rate),
        tokens_per_second=TokensPerSecond(tokens),
        scheduled_samples_per_second=None if scheduled is None else SamplesPerSecond(scheduled),
        ttft_p99=_ms(log, "result_first_token_99.00_percentile_latency_ns"),
        ttft_mean=_ms(log, "result_first_token_mean_latency_ns"),
        tpot_p99=_ms(log, "result_time_per_output_token_99.00_percentile_ns"),
        tpot_mean=_ms(log, "result_time_to_output_token_mean"),
        duration=Seconds(duration),
        min_duration=Seconds(log.number("effective_min_duration_ms") / 1e3),
        target_qps=log.number("effective_target_qps"),
        errors=log.error_count,
        seeds=(log.count("effective_qsl_rng_seed"), log.count("effective_sample_index_rng_seed"),
               log.count("effective_schedule_rng_seed")),
        loadgen_version=log.text("loadgen_version"),
    )
    verdict, reasons = log.text("result_validity"), tuple(_reasons(result, log, limited=keys.limited))
    log.require_end("result_validity")
    return replace(result, valid=verdict == "VALID" and not reasons, reasons=reasons)


def _reasons(result: PerformanceResult, log: DetailLog, *, limited: bool) -> Iterator[str]:
    if not log.flag("result_min_duration_met"):
        yield f"minimum duration not met: {result.duration} of {result.min_duration}"
    if not log.flag("result_min_queries_met"):
        yield "minimum number of queries not met: the test ended early"
    if limited and not log.flag("result_perf_constraints_met"):
        yield f"latency limits exceeded: TTFT p99 {result.ttft_p99}, TPOT p99 {result.tpot_p99}"
    if not log.flag("early_stopping_met"):
        yield f"early stopping not satisfied: {_early_stopping(log)}"
    distinct = dict.fromkeys(log.errors)
    if distinct:
        yield from (f"LoadGen error: {text}" for text in distinct)
    elif result.errors:
        yield f"LoadGen counted {result.errors} errors"


def _early_stopping(log: DetailLog) -> str:
    """Return what LoadGen says on early stopping for TPOT and TTFT, on one line."""
    said = []
    for metric in ("tpot", "ttft"):
        text = " ".join((log.text_or_none(f"early_stopping_{metric}_result") or "").replace("*", " ").split())
        if text and "Run successful" not in text:
            said.append(f"{metric.upper()}: {text.removeprefix('Run unsuccessful. ')}")
    return "; ".join(said) or "too few queries"


def _ms(log: DetailLog, key: str) -> Milliseconds | None:
    value = log.number_or_none(key)
    return None if value is None else Milliseconds(value / 1e6)
