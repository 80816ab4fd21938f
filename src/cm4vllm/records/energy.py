"""The energy that counters of GPU boards and CPU packages state for a run: it is not MLPerf's power.

A counter is read through the whole run. Its energy is the difference between the two ends of the run's window, each end
interpolated between the readings around it; what lies between these two readings is the resolution.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise

from msgspec.structs import replace

from cm4vllm.common.records import Record

#: A time as time.time() gives it, and the value of a counter then.
Reading = tuple[float, int]
#: Assumed, no source: no GPU board and no CPU package draws as many W, so that what a counter states to have counted
#: since a wrap or a reset, and through a whole run, is less.
_MOST_W = 5000.0
#: Assumed, no source: no GPU board and no CPU package that is switched on draws as little. A counter, which is renewed
#: several times a second, has stopped where it states less in this time and more.
_LEAST_W, _STOPPED_S = 0.1, 2.0


class Scope(StrEnum):
    """A part of a machine whose energy a counter states."""

    GPU = "GPU board"
    CPU = "CPU package"


class Counter(Record, frozen=True, kw_only=True):
    """A counter of energy: `unit_j` is the energy of 1 in J, `wraps_at` the value after which it begins at 0.

    `device` is the GPU's UUID, empty for a CPU package.
    """

    name: str
    scope: Scope
    method: str
    unit_j: float
    wraps_at: int
    device: str = ""


class CountedEnergy(Record, frozen=True, kw_only=True):
    """The energy of one counter in a run, in J; the true difference of the counter is within `within_j` of it.

    `first` and `last` are the readings before the begin and after the end of the window: seconds from its begin, and
    the value in units of `unit_j`. The counter began at 0 again in `wraps` and `resets`; what it had counted just
    before a reset is not known and is not part of the energy. With `serves` False the server did not compute on the
    GPU.
    """

    name: str
    scope: Scope
    method: str
    unit_j: float
    joules: float
    within_j: float
    first: Reading
    last: Reading
    wraps: int = 0
    resets: int = 0
    serves: bool = True


class RunEnergy(Record, frozen=True, kw_only=True):
    """The energy that counters stated for the window of a run, from LoadGen's power_begin to its power_end.

    `not_measured` says for each part that no counter states why there is none.
    """

    seconds: float
    counters: list[CountedEnergy] = []
    not_measured: list[str] = []

    def serving(self, scope: Scope) -> list[CountedEnergy]:
        """Return the counters of a scope that count for the run: of GPUs those on which the server computes."""
        return [counter for counter in self.counters if counter.scope is scope and counter.serves]


def energy_of_run(
    counters: Sequence[tuple[Counter, Sequence[Reading]]],
    begin: datetime,
    end: datetime,
    *,
    used: Sequence[str],
    not_measured: Sequence[str],
) -> RunEnergy:
    """Return the energy between two times. `used` are the UUIDs of the GPUs that serve; all do where it is empty."""
    first, last = begin.astimezone(UTC).timestamp(), end.astimezone(UTC).timestamp()
    counted, missing = [], list(not_measured)
    for counter, readings in counters:
        energy = energy_between(counter, readings, first, last)
        if isinstance(energy, str):
            missing.append(f"{counter.name}: {energy}")
            continue
        serves = counter.scope is not Scope.GPU or not used or counter.device in used
        counted.append(replace(energy, serves=serves))
    return RunEnergy(seconds=round(last - first, 3), counters=counted, not_measured=missing)


def energy_between(counter: Counter, readings: Sequence[Reading], begin: float, end: float) -> CountedEnergy | str:
    """Return the energy of a counter between two times, or why its readings do not state it."""
    before = [place for place, (at, _) in enumerate(readings) if at <= begin]
    after = [place for place, (at, _) in enumerate(readings) if at >= end]
    if not before or not after:
        return "its counter was not read before and after the run"
    inside = readings[before[-1] : after[0] + 1]
    counted, wraps, resets = [0], 0, 0
    for (earlier, low), (later, high) in pairwise(inside):
        step, most = high - low, _MOST_W * (later - earlier) / counter.unit_j
        if step < 0:
            over = counter.wraps_at - low + high
            if 0 <= over <= most:
                step, wraps = over, wraps + 1
            elif high <= most < -step:  # a smaller step back is as likely an error of the counter
                step, resets = high, resets + 1
            else:
                return f"its counter went back from {low:,} to {high:,}, which is neither its end nor a new begin"
        counted.append(counted[-1] + step)
    points = [(at, count * counter.unit_j) for (at, _), count in zip(inside, counted, strict=True)]
    seconds, total_j = points[-1][0] - points[0][0], points[-1][1]
    if stopped := _first_stop(points):
        place, lasted = stopped
        return f"its counter stayed at {inside[place][1]:,} for {lasted:.3g} s"
    if total_j > _MOST_W * seconds:
        return f"its counter states {total_j:,.0f} J in {seconds:.3g} s, which it cannot draw"
    at_begin, begin_within = _interpolate(points[:2], begin)
    at_end, end_within = _interpolate(points[-2:], end)
    return CountedEnergy(
        name=counter.name,
        scope=counter.scope,
        method=counter.method,
        unit_j=counter.unit_j,
        joules=round(at_end - at_begin, 6),
        within_j=round(begin_within + end_within, 6),
        first=(round(inside[0][0] - begin, 3), inside[0][1]),
        last=(round(inside[-1][0] - begin, 3), inside[-1][1]),
        wraps=wraps,
        resets=resets,
    )


def _first_stop(points: Sequence[tuple[float, float]]) -> tuple[int, float] | None:
    """Return where the counter stopped, and for how many s it had all but stayed there; None where it went on.

    It stopped where it states less than _LEAST_W for _STOPPED_S and more, or through the whole of a shorter run.
    """
    since = 0
    for place, (at, joules) in enumerate(points):
        lasted = at - points[since][0]
        if joules - points[since][1] >= _LEAST_W * lasted > 0:
            since = place
        elif lasted >= _STOPPED_S or (since == 0 and place == len(points) - 1):
            return since, lasted
    return None


def _interpolate(points: Sequence[tuple[float, float]], at: float) -> tuple[float, float]:
    """Return the joules at a time between two points, and by how many they may be off; none where it is a point."""
    (earlier, low), (later, high) = points[0], points[-1]
    for time, joules in points:
        if time == at:
            return joules, 0.0
    joules = low + (high - low) * (at - earlier) / (later - earlier)
    return joules, max(joules - low, high - joules)
