"""The searches of a campaign: p99 over the rate of each probe for the target rate, and the server settings tried."""

from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.errors import CmError
from cm4vllm.common.number_texts import ms, number, percent, qps, rate
from cm4vllm.common.records import read_record
from cm4vllm.records.searches.rate_search import SEARCH_FILE, LimitRecord, ProbeRecord, SearchRecord
from cm4vllm.records.searches.settings_search import SETTINGS_FILE, Evaluation, Score, SettingsRecord
from cm4vllm.report.pictures.canvas import Axis, Canvas, Picture, Table

#: Percent of a limit above which a percentile stands at the edge of the picture; its table has the number.
MOST = 400.0
#: The place of the record of a search over server settings, below the results.
SETTINGS_PATH = f"search/server-settings/{SETTINGS_FILE}"


def search_curves(out: Path, scenario: str) -> list[Picture]:
    """Return the picture of each search of a scenario below OUT/search; none where no search was made."""
    curves = []
    for path in sorted(out.glob(f"search/**/{SEARCH_FILE}")):
        try:
            record = read_record(path, SearchRecord)
        except CmError:
            continue  # one under way, or of another version
        points = [(probe, limit) for probe in record.probes for limit in probe.limits if limit.p99_ms is not None]
        if record.scenario == scenario and points:
            curves.append(_curve(record, points, path.relative_to(out).as_posix()))
    return curves


def _curve(record: SearchRecord, points: list[tuple[ProbeRecord, LimitRecord]], file: str) -> Picture:
    """Return the picture of p99 as a share of its limit, so that the limits of TTFT and TPOT are one line."""
    names = list(dict.fromkeys(limit.name for _, limit in points))
    shares = [100 * (limit.p99_ms or 0.0) / limit.limit_ms for _, limit in points]
    canvas = Canvas.over([*[probe.rate for probe, _ in points], record.rate], [110.0, min(max(shares), MOST)], rows=2)
    canvas.y = Axis(0, canvas.y.high, canvas.y.begin, canvas.y.end)
    canvas.axes("queries/s", "p99, % of its limit" + (f"; above {MOST:g} at the edge" if max(shares) > MOST else ""))
    canvas.level(100, "mark-limit", "limit")
    for place, name in enumerate(names[:2], 1):
        ordered = sorted(
            (probe.rate, 100 * (limit.p99_ms or 0.0) / limit.limit_ms) for probe, limit in points if limit.name == name
        )
        canvas.line(ordered, f"line-{place}")
        canvas.dots(ordered, f"bar-{place}")
    if record.rate:
        canvas.marks([(record.rate, "mark-p99", f"found: {qps(record.rate)}")])
    rows = tuple(
        (
            qps(probe.rate),
            limit.name,
            ms(limit.p99_ms or 0.0),
            ms(limit.limit_ms),
            percent((limit.p99_ms or 0.0) / limit.limit_ms),
            f"{probe.queries:,}",
            probe.verdict,
        )
        for probe, limit in sorted(points, key=lambda point: point[0].rate)
    )
    interval = record.interval
    true = f"; interval of the true rate: {qps(interval.low)} to {qps(interval.high)}" if interval else ""
    words = f"{len(record.probes)} probes found {qps(record.rate)} queries/s{true}; {record.stopped}"
    words += f"; {record.drift}" if record.drift else ""
    return Picture(
        "Search for the target rate",
        words,
        tuple(canvas.shapes),
        (Table(("queries/s", "limit", "p99, ms", "limit, ms", "of it", "queries", "verdict"), rows),),
        f"{file}: probes",
        tuple((f"line-{place}", f"{name} p99") for place, name in enumerate(names[:2], 1)),
    )


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
    return TriedSettings(
        _words(record),
        ("Options of vLLM", "Round", "Seconds each", "Start, s", *record.scenarios, ""),
        tuple(_row(record, evaluation, standing.get(evaluation.number, "")) for evaluation in ordered),
        SETTINGS_PATH,
    )


def _words(record: SettingsRecord) -> str:
    """Return what a search over server settings did, in sentences."""
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
    """Return the cells of one candidate of a search: options, round, times, values, standing."""
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
