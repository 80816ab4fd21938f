"""Target QPS where the user gave none: computed from a rate that was measured on this server, never guessed."""

from dataclasses import dataclass

from cm4vllm.common.units import SamplesPerSecond, four_digits

#: LoadGen sizes an Offline run as 1.1 x 600 s x target QPS samples, and the run must last 600 s. An accuracy run is
#: shorter, so that filling and emptying the server's batch weigh more in it and its rate comes out too low (by 8 % in a
#: run on two cores: 213.5 samples/s, then 232.9): with this factor a run lasts 792 s at the rate measured before it,
#: and still 600 s at a rate 1.32 times as high.
OFFLINE_MARGIN = 1.2
#: In a rehearsal, whose accuracy run takes a second or two: up to 1.9 times the rate measured in it was seen after it.
REHEARSAL_MARGIN = 2.0

#: The share of the Offline rate that a scenario with queries at their own times is asked for where its rate is not
#: searched for. It is a safe choice, not the highest rate that keeps the latency limits.
SERVER_SHARE = 0.2
#: In a rehearsal: the rate of its short Offline accuracy run is up to 1.9 times too low (see REHEARSAL_MARGIN), so that
#: this is about the same share of what the server carries.
REHEARSAL_SHARE = 0.4
#: The most that a search for that rate takes: in full-length runs, and in a rehearsal in seconds.
SEARCH_RUNS, REHEARSAL_SEARCH_S = 2.5, 75.0

#: Where each query follows the answer before it, LoadGen plans as many as take 1,200 s at the expected latency, rounds
#: them up to whole passes over the dataset, and issues all of them; a run that ends before 600 s is not valid. With
#: this share of the rate measured before it a run lasts 900 s or a pass, and still 600 s where the server turns out to
#: be 1.5 times as fast.
LATENCY_SHARE = 0.75
#: Queries of the run that measures the mean latency: as many as LoadGen needs to estimate its 90th percentile.
LATENCY_QUERIES = 64


@dataclass(frozen=True)
class TargetQps:
    """A target rate in queries/s (samples/s in Offline) and where it comes from, in words."""

    value: float
    source: str


def target_of(rate: SamplesPerSecond, share: float, step: str, *, one_by_one: bool = False) -> TargetQps:
    """Return `share` of the `rate` that `step` measured as a target QPS.

    The words name a latency where queries come one by one.
    """
    source = (
        f"{1 / share:.3g} x the mean latency of {step}, {four_digits(1000 / rate)} ms"
        if one_by_one
        else f"{share} x the {rate} of {step}"
    )
    return TargetQps(float(f"{rate * share:.3g}"), source)
