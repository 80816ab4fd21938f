"""The table of the server settings that a search tried."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.errors import CmError
from cm4vllm.common.records import read_record
from cm4vllm.report.formatting import number, rate
from cm4vllm.results.settings_search_record import SETTINGS_FILE, Evaluation, Score, SettingsRecord

__all__ = ["SETTINGS_PATH", "TriedSettings", "tried_settings"]

#: The record's place below the results.
SETTINGS_PATH = f"search/server-settings/{SETTINGS_FILE}"


@dataclass(frozen=True)
class TriedSettings:
    """A search in words, and the rows of its table: each candidate with its last measurement, the chosen one first."""

    words: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    source: str


def tried_settings(out: Path) -> TriedSettings | None:
    """Return the settings that a search over server settings tried; None where no search can be read."""
    try:
        record = read_record(out / SETTINGS_PATH, SettingsRecord)
    except CmError:
        return None
    standing = {rival.number: rival.standing for rival in record.rivals}
    last = {
        evaluation.number: evaluation
        for evaluation in sorted(record.evaluations, key=lambda evaluation: evaluation.round)
    }
    ordered = sorted(
        last.values(), key=lambda evaluation: (evaluation.score is None, -evaluation.round, -(evaluation.score or 0.0))
    )
    head = ("Options of vLLM", "Round", "Seconds each", "Start, s", *record.scenarios, "")
    return TriedSettings(
        _words(record),
        head,
        tuple(_row(record, evaluation, standing.get(evaluation.number, "")) for evaluation in ordered),
        SETTINGS_PATH,
    )


def _words(record: SettingsRecord) -> str:
    gain = (
        f", which did {record.gain:.3f} times as much as the server as it is" if record.gain and record.chosen else ""
    )
    untried = f"; for {number(record.untried)} the time was not enough" if record.untried else ""
    return (
        f"--search={record.search} tried {number(record.candidates - record.untried)} of {number(record.candidates)} "
        f"candidates, and the server as it is where it is none of them, with {number(record.starts)} starts in "
        f"{rate(record.cost_s / 60)} of {rate(record.minutes)} minutes{untried}. "
        f"All runs have {record.words or 'the server as it is'}{gain}. Values of short measurements compare with each "
        "other alone, in the same round; how far they are from those of full-length runs was not measured. "
        f"{record.evidence}".rstrip()
    )


def _value(score: Score) -> str:
    """Return a value with its interval: the bracket of a rate that was searched for, else that of its parts."""
    bracket = ""
    if score.low is not None and score.high is not None:
        bracket = f" ({rate(score.low)} to {rate(score.high)})"
    return f"{rate(score.value)} {score.unit}{bracket}"


def _row(record: SettingsRecord, evaluation: Evaluation, standing: str) -> tuple[str, ...]:
    scores = {score.scenario: _value(score) for score in evaluation.scenarios}
    options = " ".join(f"--{name}={value}" for name, value in evaluation.options.items()) or "as without the search"
    state = "chosen" if evaluation.options == record.chosen and evaluation.score is not None else standing
    return (
        options,
        number(evaluation.round + 1) if evaluation.round >= 0 else "first start",
        rate(evaluation.seconds),
        rate(evaluation.start_s),
        *(scores.get(scenario, "-") for scenario in record.scenarios),
        f"dropped: {evaluation.failure}" if evaluation.failure else state,
    )
