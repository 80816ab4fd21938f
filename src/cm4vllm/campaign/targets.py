"""Target QPS where the user gave none: computed from a rate that was measured on this server, never guessed."""

from __future__ import annotations

from dataclasses import dataclass

from cm4vllm.common.units import SamplesPerSecond
from cm4vllm.loadgen.records import RunRecord

__all__ = ["OFFLINE_MARGIN", "REHEARSAL_MARGIN", "SERVER_SHARE", "TargetQps", "measured_rate", "target_of"]

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


def target_of(rate: SamplesPerSecond, share: float, step: str) -> TargetQps:
    """Return `share` of the `rate` that `step` measured as a target QPS."""
    return TargetQps(_rounded(rate * share), f"{share} x the {rate} of {step}")


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
