"""The energy that counters stated for a run, in words and as a table, always under the name that it has."""

import math

from cm4vllm.common.number_texts import rate
from cm4vllm.records.energy import CountedEnergy, Scope
from cm4vllm.report.pictures.canvas import Table
from cm4vllm.results.energy_figures import energy_figures, energy_label
from cm4vllm.results.model import Performance

_HEAD = ("counter", "scope", "method", "energy, J", "mean, W", "resolution")
#: What the counters of these parts leave out.
_NOT_INCLUDED = (
    "Not included: fans, disks, network, the main board, and the losses of the power supplies; with GPU boards alone "
    "processors and memory, too; other machines. An analyzer at the wall measures all of it."
)


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
