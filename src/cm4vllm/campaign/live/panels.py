"""Panels of text lines that show a status. The terminal and the page draw the same panels."""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from cm4vllm.campaign.ledger import State
from cm4vllm.campaign.live.status import JobState, StatusRecord, StepStatus, left_words
from cm4vllm.common.records import Record
from cm4vllm.common.units import duration_text, four_digits
from cm4vllm.endpoints.records import CurveStatus
from cm4vllm.loadgen.process.messages import LatencyStatus, RunStatus
from cm4vllm.records.client import HEADROOM
from cm4vllm.records.searches.rate_search import SearchStatus

#: Steps shown before the one that runs, and after it; warnings shown.
_BEFORE, _AFTER, _WARNINGS = 2, 2, 2
#: If a status is older than so many of its intervals, its process has ended or is stopped.
_SILENT = 10
_ENDED = (State.DONE, State.KEPT, State.LEFT_OUT, State.FAILED, State.ABORTED)


class Tone(StrEnum):
    """The meaning of a line, which decides its colour."""

    PLAIN = "plain"
    MUTED = "muted"
    STRONG = "strong"
    GOOD = "good"
    BAD = "bad"


class Line(Record, frozen=True, kw_only=True):
    """A line: its label, its text, and at its end a time. `part` is the part that is done, in [0..1]."""

    label: str
    text: str
    end: str = ""
    tone: Tone = Tone.PLAIN
    part: float | None = None


class Panel(Record, frozen=True, kw_only=True):
    title: str
    lines: tuple[Line, ...]


class View(Record, frozen=True, kw_only=True):
    """All that is shown. `ended` says that nothing more will come."""

    title: str
    state: str
    tone: Tone
    ended: bool
    notices: tuple[str, ...]
    panels: tuple[Panel, ...]


def view_of(status: StatusRecord, age_s: float = 0.0) -> View:
    """Return the lines to show of a status that was written `age_s` seconds ago."""
    state, tone = str(status.state), Tone.STRONG
    if status.state is JobState.RUNNING and age_s > _SILENT * status.interval_s:
        state, tone = f"no sign of life for {duration_text(age_s)}: stopped or killed", Tone.BAD
    elif status.state is not JobState.RUNNING:
        tone = Tone.GOOD if status.state is JobState.DONE else Tone.BAD
    panels = (
        Panel(title=_heading(status), lines=tuple(_steps(status.steps))),
        *_run_panels(status),
        Panel(title="warnings", lines=tuple(_warnings(status))),
    )
    return View(
        title=status.title,
        state=f"{state}, {duration_text(status.elapsed_s)}",
        tone=tone,
        ended=status.state is not JobState.RUNNING,
        notices=status.notices,
        panels=tuple(panel for panel in panels if panel.lines),
    )


# --- the steps -------------------------------------------------------------------------------------------------------


def _heading(status: StatusRecord) -> str:
    ended = sum(step.state in _ENDED for step in status.steps)
    return ", ".join(filter(None, (f"{ended} of {len(status.steps)} steps", status.left_words)))


def _steps(steps: Sequence[StepStatus]) -> Iterator[Line]:
    """Yield the steps around the one that runs, and say how many others there are."""
    ended = [step for step in steps if step.state in _ENDED]
    running = [step for step in steps if step.state is State.RUNNING]
    planned = [step for step in steps if step.state is State.PLANNED]
    failed = [step for step in ended[:-_BEFORE] if step.state in (State.FAILED, State.ABORTED)]
    if (before := len(ended) - _BEFORE - len(failed)) > 0:
        yield Line(label="", text=f"{_number(before, 'step')} before", tone=Tone.MUTED)
    for step in (*failed, *ended[-_BEFORE:], *running, *planned[:_AFTER]):
        yield _step(step)
    if len(planned) > _AFTER:
        yield Line(label="", text=f"{_number(len(planned) - _AFTER, 'step')} after", tone=Tone.MUTED)


def _number(count: int, of: str) -> str:
    return f"{count} {of}{'s' if count > 1 else ''}"


_TONES = {
    State.PLANNED: Tone.MUTED,
    State.RUNNING: Tone.STRONG,
    State.DONE: Tone.GOOD,
    State.KEPT: Tone.GOOD,
    State.LEFT_OUT: Tone.MUTED,
    State.FAILED: Tone.BAD,
    State.ABORTED: Tone.BAD,
}


def _step(step: StepStatus) -> Line:
    why = step.why.partition("\n")[0]  # cause and remedy stand in the output
    text = f"{step.name}: {why}" if why and step.state is not State.LEFT_OUT else step.name
    end = duration_text(step.took_s) if step.took_s is not None and step.state is not State.LEFT_OUT else ""
    if step.state is State.PLANNED and step.expected_s is not None:
        end = f"{'at least' if step.at_least else 'about'} {duration_text(step.expected_s)}"
    return Line(label=str(step.state), text=text, end=end, tone=_TONES[step.state])


# --- what is under way -----------------------------------------------------------------------------------------------


def _run_panels(status: StatusRecord) -> Iterator[Panel]:
    if status.search is not None:
        yield Panel(title=f"search for the {status.search.scenario} rate", lines=tuple(_search(status.search)))
    if status.curve is not None:
        yield Panel(title=f"point {status.curve.number} of {status.curve.count}", lines=tuple(_curve(status.curve)))
    elif status.run is not None:
        yield Panel(title=f"{status.run.title} run", lines=tuple(_run(status.run)))
    elif status.doing:
        yield Panel(
            title="now",
            lines=(
                Line(label="", text=status.doing),
                *([Line(label="", text=status.progress)] if status.progress else []),
            ),
        )


def _run(run: RunStatus) -> Iterator[Line]:
    if run.elapsed_s:
        of = f" of {run.total:,}" if run.total else ""
        yield Line(
            label="samples",
            text=f"{run.done:,}{of}",
            end=left_words(run.left),
            part=min(1.0, run.done / run.total) if run.total else None,
        )
        yield Line(
            label="rate",
            text=f"{four_digits(run.samples_per_second)} samples/s, {run.tokens_per_second:,.0f} "
            f"tokens/s, {run.in_flight:,} in flight",
        )
    else:
        yield Line(label="", text="being prepared: dataset, client")
    for latency in run.latencies:
        yield _latency(latency)
    if (server := run.server) is not None:
        cached = f", {server.cached_prompt_tokens:,} prompt tokens cached" if server.cached_prompt_tokens else ""
        yield Line(
            label="server",
            text=f"{server.running:,} running, {server.waiting:,} waiting, KV cache "
            f"{server.kv_cache_usage:.0%}, {server.preemptions:,} preemptions{cached}",
            tone=Tone.BAD if cached else Tone.PLAIN,
        )
    if (client := run.client) is not None and client.headroom is not None:
        enough = client.headroom >= HEADROOM
        yield Line(
            label="client",
            text=f"can carry {client.headroom:,.1f} times the load" + ("" if enough else f"; {HEADROOM} are needed"),
            tone=Tone.PLAIN if enough else Tone.BAD,
        )


def _latency(latency: LatencyStatus) -> Line:
    text = f"p50 {_ms(latency.p50_ms)}, p99 {_ms(latency.p99_ms)}"
    if latency.limit_ms is None:
        return Line(label=latency.name, text=f"{text} ms")
    text += f" of {latency.limit_ms:,.0f} ms"
    if latency.missing:
        return Line(
            label=latency.name,
            text=f"{text}; {latency.over:,} over, {latency.missing:,} more needed",
            tone=Tone.BAD if latency.p99_ms > latency.limit_ms else Tone.PLAIN,
        )
    bound = f", at most {_ms(latency.p99_at_most_ms)}" if latency.p99_at_most_ms is not None else ""
    return Line(label=latency.name, text=f"{text}{bound}; passes so far", tone=Tone.GOOD)


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _search(search: SearchStatus) -> Iterator[Line]:
    kind = "full-length run" if search.full_length else "probe"
    yield Line(
        label="probe",
        text=f"{search.number}: {search.rate:g} queries/s, a {kind} of {duration_text(search.planned_s)}",
        end=f"{duration_text(search.spent_s)} spent",
    )
    passing = f"{search.passing:g} passes" if search.passing is not None else "none passes yet"
    failing = f"{search.failing:g} fails" if search.failing is not None else "none fails yet"
    yield Line(label="bracket", text=f"{passing}, {failing} (queries/s)")


def _curve(curve: CurveStatus) -> Iterator[Line]:
    """Yield the client under way, then the points so far, the newest first."""
    samples = f"{curve.done:,} of {curve.total:,} samples" if curve.total else "the client starts"
    yield Line(
        label=f"{curve.concurrency:,}",
        text=f"in flight: {samples}",
        end=f"{duration_text(max(0.0, curve.foreseen_s[curve.number - 1] - curve.elapsed_s))} left",
        tone=Tone.STRONG,
        part=min(1.0, curve.done / curve.total) if curve.total else None,
    )
    for point in reversed(curve.points):
        user = point.tokens_per_second_per_user
        speed = f"{point.tokens_per_second:,.0f} tokens/s" + (f", {user:,.1f} per user" if user is not None else "")
        yield Line(
            label=f"{point.concurrency:,}", text=f"in flight: {speed}; {point.steady_state or 'no steady state'}"
        )


def _warnings(status: StatusRecord) -> Iterator[Line]:
    if status.cause:
        yield Line(label="failed", text=status.cause, tone=Tone.BAD)
    if len(status.warnings) > _WARNINGS:
        yield Line(label="", text=f"{len(status.warnings) - _WARNINGS} before these", tone=Tone.MUTED)
    for warning in status.warnings[-_WARNINGS:]:
        yield Line(label="", text=warning, tone=Tone.BAD)
