"""The power that an analyzer recorded during a run, as the official checkers compute it; and energy by counters.

The figures of power are those of tools/submission/submission_checker/checks/power_check.py: the mean of the samples
above zero between the log's power_begin and power_end, in W; and for results that are compared by a latency, the energy
of a query in mJ. Counters of GPU boards and CPU packages state a part of the system's energy, under names of their own:
their figures are never a part of a submission.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cm4vllm.common.units import Milliseconds
from cm4vllm.records.energy import RunEnergy, Scope
from cm4vllm.records.logs.detail_log import Window
from cm4vllm.records.power.protocol import totals_of
from cm4vllm.records.power.samples import SAMPLES, mean_watts
from cm4vllm.records.power.session import SESSION, Phase, PowerSession, session_beside
from cm4vllm.records.run import RUN_FILE
from cm4vllm.results.figures import Figure, Source
from cm4vllm.results.model import Performance

#: The names of the figures of power.
POWER_FIGURES = ("power", "energy_per_query", "efficiency")
_ONE_SESSION = "one session, without others to compare it with"
#: The names of figures of counted energy, each with the words that stand beside it everywhere.
ENERGY_LABELS: Mapping[str, str] = {
    "gpu_energy": "GPU energy, not MLPerf power",
    "gpu_efficiency": "work for a joule of GPU energy, not MLPerf power",
    "cpu_energy": "CPU package energy, not MLPerf power",
    "cpu_efficiency": "work for a joule of CPU package energy, not MLPerf power",
}
_WHY_NO_INTERVAL = "one reading of counters at each end of the run"
_NAMES = {Scope.GPU: "gpu", Scope.CPU: "cpu"}


@dataclass(frozen=True)
class RecordedPower:
    """The power session of a run: its published figures, and the other facts of its samples.

    `metric` is the published figure, `efficiency` the work for a joule: tokens or samples. `idle` is the mean of the
    samples before and after the window, `peak` the greatest within it, `ranging` the mean of the run before, all in W;
    `uncertainty` are the mean and the greatest in percent, as PTDaemon stated them for the whole measurement. What is
    not known is None. It is `simulated` where no analyzer was read.
    """

    session: PowerSession
    window: Window
    mean: Figure
    metric: Figure
    efficiency: Figure | None
    samples: int
    idle: float | None
    peak: float
    ranging: float | None
    uncertainty: tuple[float, float] | None
    simulated: bool


def recorded_power(part: Performance) -> RecordedPower | None:
    """Return the power of a performance run; None where no analyzer's samples lie in its window beside LoadGen's log.

    None also where a run that is compared by a latency states no number of queries.
    """
    window = part.window
    session = session_beside(part.folder) if window else None
    if window is None or session is None:
        return None
    samples = session.samples(Phase.TESTING)
    inside = samples.within(window.begin, window.end)
    watts, one_by_one = mean_watts(inside), part.metric is not None and isinstance(part.metric.value, Milliseconds)
    if watts is None or (one_by_one and not part.queries):
        return None
    mean = metric = Figure("power", watts, "W", _source(part, "Watts, mean of the run"))
    if one_by_one:
        metric = Figure(
            "energy_per_query",
            watts * window.seconds * 1000 / part.queries,
            "mJ/query",
            _source(part, "Watts, mean of the run; power_begin, power_end, result_query_count of LoadGen's log"),
        )
    outside = [sample for sample in samples.samples if not window.begin < sample.at < window.end]
    before = session.window(Phase.RANGING)
    said = [
        totals for message in session.ptd_messages if (totals := totals_of(str(message.get("reply")), "Uncertainty"))
    ]
    return RecordedPower(
        session=session,
        window=window,
        mean=mean,
        metric=metric,
        efficiency=_efficiency(part, mean, metric),
        samples=sum(sample.usable for sample in inside),
        idle=mean_watts(outside),
        peak=max(sample.watts for sample in inside if sample.usable),
        ranging=mean_watts(session.samples(Phase.RANGING).within(before.begin, before.end)) if before else None,
        uncertainty=(100 * said[-1].mean, 100 * said[-1].maximum) if said else None,
        simulated=any(identity.simulated for identity in session.identities)
        or any(sample.simulated for sample in inside),
    )


def power_figures(part: Performance) -> list[Figure]:
    """Return the published power of a run and its work per joule as figures; none without a power session."""
    power = recorded_power(part)
    figures = [power.metric, power.efficiency] if power else []
    return [replace(figure, why_no_interval=_ONE_SESSION) for figure in figures if figure is not None]


def _efficiency(part: Performance, mean: Figure, metric: Figure) -> Figure | None:
    """Return tokens/J, samples/J without tokens, or queries/J where results are compared by a latency."""
    if metric is not mean and metric.unit != mean.unit:
        return Figure("efficiency", 1000 / metric.value, "queries/J", metric.source)
    rate = part.metric
    if rate is None or not rate.unit.endswith("/s"):
        return None
    return Figure(
        "efficiency",
        rate.value / mean.value,
        f"{rate.unit.removesuffix('/s')}/J",
        Source(mean.source.file, f"{mean.source.field}; {rate.source}"),
    )


def _source(part: Performance, field: str) -> Source:
    folder = part.log.rpartition("/")[0]
    if not (part.folder / SAMPLES).is_file():  # our own runs have their session beside them
        folder = f"{folder.rpartition('/')[0]}/{SESSION}/{Phase.TESTING}"
    return Source(f"{folder}/{SAMPLES}", field)


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
    if (work := _work_done(part, energy.seconds)) is not None and joules > 0:
        amount, unit, source = work
        source = Source(file, f"{field}; {source}")
        figures.append(
            Figure(
                f"{_NAMES[scope]}_efficiency", amount / joules, f"{unit}/J", source, why_no_interval=_WHY_NO_INTERVAL
            )
        )
    return figures


def _work_done(part: Performance, seconds: float) -> tuple[float, str, Source] | None:
    """Return the work of a run: tokens or samples by its rate and window; queries where a latency is compared."""
    metric = part.metric
    if metric is None:
        return None
    if isinstance(metric.value, Milliseconds):
        return (part.queries, "queries", metric.source) if part.queries else None
    if not metric.unit.endswith("/s"):
        return None
    return metric.value * seconds, metric.unit.removesuffix("/s"), metric.source
