"""Target QPS where the user gave none: computed from a rate that was measured on this server, never guessed."""

from __future__ import annotations

from dataclasses import dataclass

from cm4vllm.common.units import SamplesPerSecond
from cm4vllm.loadgen.records import RunRecord

__all__ = ["TargetQps", "measured_rate", "offline_target", "server_target"]

#: LoadGen sizes an Offline run as 1.1 x 600 s x target QPS samples, and the run must last 600 s. An accuracy run is
#: shorter, so that filling and emptying the server's batch weigh more in it and its rate comes out too low (by 8 % in a
#: run on two cores: 213.5 samples/s, then 232.9): with this factor a run lasts 792 s at the rate measured before it,
#: and still 600 s at a rate 1.32 times as high.
OFFLINE_MARGIN = 1.2
#: In a rehearsal, whose accuracy run takes a second or two: up to 1.9 times the rate measured in it was seen after it.
REHEARSAL_MARGIN = 2.0

#: The share of the Offline rate that the Server scenario is asked for. It is a safe choice, not the highest rate that
#: keeps the latency limits: that one has to be searched for.
SERVER_SHARE = 0.2


@dataclass(frozen=True)
class TargetQps:
    """A target rate in queries/s (samples/s in Offline) and where it comes from, in words."""

    value: float
    source: str


def measured_rate(run: RunRecord) -> SamplesPerSecond:
    """Return the samples/s that `run` completed over its whole duration."""
    return SamplesPerSecond(run.client.completed / run.duration_s)


def offline_target(rate: SamplesPerSecond, *, rehearsal: bool) -> TargetQps:
    """Return the target QPS with which an Offline run at `rate` lasts long enough to be valid."""
    margin = REHEARSAL_MARGIN if rehearsal else OFFLINE_MARGIN
    return TargetQps(_rounded(rate * margin), f"{margin} x the {rate} measured before it")


def server_target(rate: SamplesPerSecond) -> TargetQps:
    """Return a target QPS that a server of this Offline `rate` keeps up with."""
    return TargetQps(_rounded(rate * SERVER_SHARE), f"{SERVER_SHARE} x the {rate} measured Offline before it")


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
