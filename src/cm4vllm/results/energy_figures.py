"""The energy of a run by the counters of GPU boards and CPU packages, as figures apart from MLPerf power.

It is never a part of a submission: an analyzer measures the whole system at the wall, these counters a part of it.
"""

from collections.abc import Mapping

from cm4vllm.common.units import Milliseconds
from cm4vllm.records.energy import RunEnergy, Scope
from cm4vllm.records.run import RUN_FILE
from cm4vllm.results.figures import Figure, Source
from cm4vllm.results.model import Performance

#: The names of figures of counted energy, each with the words that stand beside it everywhere.
ENERGY_LABELS: Mapping[str, str] = {
    "gpu_energy": "GPU energy, not MLPerf power",
    "gpu_efficiency": "work for a joule of GPU energy, not MLPerf power",
    "cpu_energy": "CPU package energy, not MLPerf power",
    "cpu_efficiency": "work for a joule of CPU package energy, not MLPerf power",
}
_WHY_NO_INTERVAL = "one reading of counters at each end of the run"
_NAMES = {Scope.GPU: "gpu", Scope.CPU: "cpu"}


def energy_label(scope: Scope) -> str:
    """Return the words for the energy of a part of the machine."""
    return ENERGY_LABELS[f"{_NAMES[scope]}_energy"]


def energy_figures(part: Performance) -> list[Figure]:
    """Return a run's counted energy in J and its work per joule, for each part that has counters."""
    energy = part.run.energy if part.run else None
    if energy is None:
        return []
    return [figure for scope in Scope for figure in _figures(part, energy, scope)]


def _figures(part: Performance, energy: RunEnergy, scope: Scope) -> list[Figure]:
    counted = energy.serving(scope)
    if not counted:
        return []
    joules = sum(counter.joules for counter in counted)
    file = part.beside(RUN_FILE)
    field = f"energy.counters: joules, {len(counted)} of scope {scope}"
    figures = [Figure(f"{_NAMES[scope]}_energy", joules, "J", Source(file, field), why_no_interval=_WHY_NO_INTERVAL)]
    if (work := _work(part, energy.seconds)) is not None and joules > 0:
        amount, unit, source = work
        source = Source(file, f"{field}; {source}")
        figures.append(
            Figure(
                f"{_NAMES[scope]}_efficiency", amount / joules, f"{unit}/J", source, why_no_interval=_WHY_NO_INTERVAL
            )
        )
    return figures


def _work(part: Performance, seconds: float) -> tuple[float, str, Source] | None:
    """Return the work of a run: tokens or samples by its rate and window; queries where a latency is compared."""
    metric = part.metric
    if metric is None:
        return None
    if isinstance(metric.value, Milliseconds):
        return (part.queries, "queries", metric.source) if part.queries else None
    if not metric.unit.endswith("/s"):
        return None
    return metric.value * seconds, metric.unit.removesuffix("/s"), metric.source
