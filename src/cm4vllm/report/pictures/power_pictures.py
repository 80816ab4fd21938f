"""The power of a run in words and as a curve of watts, and the energy that counters stated, under its own name."""

import math
from collections.abc import Iterator

from cm4vllm import SIMULATED_POWER_NOTICE
from cm4vllm.common.number_texts import rate
from cm4vllm.records.energy import CountedEnergy, Scope
from cm4vllm.records.power.samples import SAMPLES
from cm4vllm.records.power.session import Phase
from cm4vllm.report.pictures.canvas import Canvas, Picture, Table
from cm4vllm.results.model import Performance
from cm4vllm.results.recorded_power import RecordedPower, energy_figures, energy_label, recorded_power

_HEAD = ("counter", "scope", "method", "energy, J", "mean, W", "resolution")
#: What the counters of these parts leave out.
_NOT_INCLUDED = (
    "Not included: fans, disks, network, the main board, and the losses of the power supplies; with GPU boards alone "
    "processors and memory, too; other machines. An analyzer at the wall measures all of it."
)


def power_words(power: RecordedPower) -> str:
    """Return the published figure, and the work for a joule; where no analyzer was read, that first."""
    mark = f"{SIMULATED_POWER_NOTICE}: " if power.simulated else ""
    words = f"{mark}{power.metric.value:,.3f} {power.metric.unit}"
    return f"{words}, {rate(power.efficiency.value)} {power.efficiency.unit}" if power.efficiency else words


def power_pictures(part: Performance) -> Iterator[Picture]:
    """Yield the curve of watts of the session in which a run was measured."""
    power = recorded_power(part)
    if power is None:
        return
    samples = power.session.samples(Phase.TESTING).samples
    start = samples[0].at
    points = [((sample.at - start).total_seconds(), sample.watts) for sample in samples if sample.usable]
    begin, end = ((at - start).total_seconds() for at in (power.window.begin, power.window.end))
    canvas = Canvas.over([0.0, *(at for at, _ in points)], [watts for _, watts in points], from_zero=True, rows=1)
    canvas.zone(max(begin, 0.0), min(end, points[-1][0]))
    canvas.axes("time, s", "W")
    canvas.level(power.mean.value, "line-2", f"mean of the run {power.mean.value:,.1f} W")
    canvas.line(points, "line-1")
    yield Picture(
        "Power",
        f"{power_words(power)}; the measured window is shaded",
        tuple(canvas.shapes),
        (Table(("figure", "value"), tuple(_figures(power))),),
        f"{power.mean.source.file.rpartition('/')[0]}/{SAMPLES}",
        (("zone", "measured window"), ("line-1", "power of a sample"), ("line-2", "mean of the run")),
    )


def _figures(power: RecordedPower) -> Iterator[tuple[str, str]]:
    """Yield name and value of each figure of the power of a run."""
    yield "mean of the run", f"{power.mean.value:,.3f} W"
    if power.metric.unit != power.mean.unit:
        yield "energy of a query", f"{power.metric.value:,.6f} {power.metric.unit}"
    if power.efficiency is not None:
        yield "work for a joule", f"{rate(power.efficiency.value)} {power.efficiency.unit}"
    yield "samples above zero in the window", f"{power.samples:,} in {power.window.seconds:,.1f} s"
    yield "greatest sample", f"{power.peak:,.3f} W"
    yield "mean before and after the window", "not known" if power.idle is None else f"{power.idle:,.3f} W"
    yield "mean of ranging", "not known" if power.ranging is None else f"{power.ranging:,.3f} W"
    if power.ranging is not None:
        yield "testing against ranging", f"{power.mean.value / power.ranging - 1:+.1%}"
    mean, greatest = power.uncertainty or (None, None)
    yield "uncertainty, mean", "not stated" if mean is None else f"{mean:.2f}%"
    yield "uncertainty, greatest", "not stated" if greatest is None else f"{greatest:.2f}%"


def energy_words(part: Performance) -> list[str]:
    """Return a line for each part of the machine that has counters, or one that nothing was measured.

    None where the run was made by a version that read no counters.
    """
    energy = part.run.energy if part.run else None
    if energy is None:
        return []
    figures = {figure.name: figure for figure in energy_figures(part)}
    lines = []
    for scope, name in ((Scope.GPU, "gpu"), (Scope.CPU, "cpu")):
        if joules := figures.get(f"{name}_energy"):
            work = figures.get(f"{name}_efficiency")
            efficiency = f", {rate(work.value)} {work.unit}" if work else ""
            count = len(energy.serving(scope))
            lines.append(
                f"{energy_label(scope)}: {joules.value:,.1f} J{efficiency} ({count} {scope}{'s'[: count > 1]})"
            )
    return lines or [f"{energy_label(Scope.GPU)}: not measured"]


def energy_table(part: Performance) -> Table | None:
    """Return a table of a run's energy counters and their values; None if the run has none."""
    energy = part.run.energy if part.run else None
    if energy is None or not energy.counters:
        return None
    return Table(_HEAD, tuple(_row(counter, energy.seconds) for counter in energy.counters))


def energy_notes(part: Performance) -> list[str]:
    """Return what the counters leave out, and for which parts of the machine there is none."""
    energy = part.run.energy if part.run else None
    if energy is None:
        return []
    resets = [counter.name for counter in energy.counters if counter.resets]
    return [
        *([_NOT_INCLUDED] if energy.counters else []),
        *(f"Energy not measured: {why}." for why in energy.not_measured),
        *(f"{name} began at 0 again in the run: what it had counted just before is missing." for name in resets),
    ]


def _row(energy: CountedEnergy, seconds: float) -> tuple[str, ...]:
    """Return the cells of a counter: name, scope, method, J, mean W over `seconds`, and its resolution."""
    name = energy.name if energy.serves else f"{energy.name} (the server did not compute on it: not counted)"
    within = (
        f"1 of the counter is {energy.unit_j:g} J; both ends of the window together within "
        f"{_round(energy.within_j, energy.within_j)} J"
    )
    joules = _round(energy.joules, energy.within_j)
    watts = _round(energy.joules / seconds, energy.within_j / seconds)
    return (name, str(energy.scope), energy.method, joules, watts, within)


def _round(value: float, within: float) -> str:
    """Return a value with the digits, three decimals at most, that its resolution `within` leaves."""
    decimals = min(3, max(0, -math.floor(math.log10(within)))) if within > 0 else 3
    return f"{value:,.{decimals}f}"
