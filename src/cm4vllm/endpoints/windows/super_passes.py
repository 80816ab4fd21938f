"""The blocks of a run (super-passes), those at its start that are left out, and its plateaus.

They are defined as in the official detector of the steady state (WindowRules).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from cm4vllm.common.records import Record
from cm4vllm.endpoints.events import SampleTimes
from cm4vllm.endpoints.windows.trend import level, relative_change, trend, variation
from cm4vllm.rules import PointTerms, WindowRules

_NS = 1e9


@dataclass(frozen=True, slots=True)
class SuperPass:
    """A block of samples that were issued one after another; times in ns, those of the samples in ascending order.

    `tokens` are those that the samples with a TPOT have after their first chunks.
    """

    first_issue_ns: int
    last_issue_ns: int
    ttft_ns: list[float]
    tpot_ns: list[float]
    latency_ns: list[float]
    tokens: int

    def metric(self, name: str) -> float | None:
        """Return a metric such as tpot_p90 in ns; None where no sample has it."""
        family, _, percent = name.rpartition("_p")
        values = self.tpot_ns if family == "tpot" else self.ttft_ns
        return percentile(values, int(percent)) if values else None

    @property
    def mean_tpot_ns(self) -> float:
        """The mean TPOT; 0 where no sample has one."""
        return sum(self.tpot_ns) / len(self.tpot_ns) if self.tpot_ns else 0.0


class LeastDuration(Record, frozen=True, kw_only=True):
    """The seconds that a window takes at least, by what asks for them.

    `floor_s` holds for any window, `latencies_s` are several 90th percentiles of the latency, `precision_s` the time
    after which the mean TPOT is known well enough (0 where the fewest blocks of a window suffice), and `region_s` the
    least duration of a point at its concurrency.
    """

    floor_s: float
    latencies_s: float
    precision_s: float
    region_s: float

    @property
    def detected_s(self) -> float:
        """The seconds without which the detector takes nothing for a steady state."""
        return max(self.floor_s, self.latencies_s, self.precision_s)

    @property
    def all_s(self) -> float:
        """The seconds without which the figures of a window are not official."""
        return max(self.detected_s, self.region_s)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the lower of the two values beside the percentile, from values in ascending order."""
    return ordered[int(percent / 100 * (len(ordered) - 1))]


def super_passes(samples: Sequence[SampleTimes], size: int) -> list[SuperPass]:
    """Return the blocks of so many samples, from samples in their order of issue; the last one may have fewer."""
    return [_super_pass(samples[start : start + size]) for start in range(0, len(samples), size)]


def _super_pass(samples: Sequence[SampleTimes]) -> SuperPass:
    return SuperPass(
        first_issue_ns=samples[0].issued_ns,
        last_issue_ns=max(sample.issued_ns for sample in samples),
        ttft_ns=_known(sample.ttft_ns for sample in samples),
        tpot_ns=_known(sample.tpot_ns for sample in samples),
        latency_ns=_known(sample.latency_ns for sample in samples),
        tokens=sum(sample.tokens_after_first for sample in samples if sample.tpot_ns is not None),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return sorted(float(value) for value in values if value is not None)


def pooled_tpot(blocks: Sequence[SuperPass]) -> list[float]:
    """Return the TPOT of all samples of these blocks in ascending order."""
    return sorted(chain.from_iterable(block.tpot_ns for block in blocks))


def issue_seconds(blocks: Sequence[SuperPass]) -> float:
    """Return the seconds from the first to the last issue of these blocks."""
    return (max(block.last_issue_ns for block in blocks) - min(block.first_issue_ns for block in blocks)) / _NS


def trajectory(blocks: Sequence[SuperPass], name: str) -> list[float]:
    """Return a metric of each block; blocks without it are passed over."""
    return [value for block in blocks if (value := block.metric(name)) is not None]


def warm_up(blocks: Sequence[SuperPass], rules: WindowRules) -> int:
    """Return how many blocks at the start of the run are left out."""
    terms = rules.warm_up
    values = trajectory(blocks, terms.metric)
    if len(values) < rules.passes:
        return terms.least
    steady = level(values[len(values) // 2 :])
    candidates = values[: max(terms.least, int(len(values) * terms.most))]
    still_off = (abs(value - steady) / steady > terms.band for value in candidates)
    return max(terms.least, next((place for place, off in enumerate(still_off) if not off), len(candidates)))


def plateaus(blocks: Sequence[SuperPass], rules: WindowRules) -> list[tuple[int, int]]:
    """Return the plateaus from left to right, each as its first block and the one after its last.

    A plateau is extended block by block, as long as it stays one; the next one is looked for after it.
    """
    ends, start = list[tuple[int, int]](), 0
    while start + rules.passes <= len(blocks):
        end = start + rules.passes - 1
        while end < len(blocks) and is_plateau(blocks[start : end + 1], rules):
            end += 1
        if end - start >= rules.passes:
            ends.append((start, end))
            start = end
        else:
            start += 1
    return ends


def is_plateau(blocks: Sequence[SuperPass], rules: WindowRules) -> bool:
    """Return True if each gating metric is known of all blocks, varies little, and does not change much by a trend."""
    for name in rules.gating:
        values = trajectory(blocks, name)
        if len(values) < len(blocks) or variation(values) > rules.variation:
            return False
        if abs(relative_change(values)) >= rules.drift and direction(values, rules):
            return False
    return True


def direction(values: Sequence[float], rules: WindowRules) -> int:
    """Return 1 for values that rise, -1 for those that fall, 0 without a trend or with too few values for one."""
    return trend(values, alpha=rules.alpha, quantile=rules.quantile) if len(values) >= rules.passes else 0


def least_duration(blocks: Sequence[SuperPass], rules: WindowRules, terms: PointTerms) -> LeastDuration:
    """Return the seconds that a window of these blocks takes at least."""
    asked, varies = rules.duration, variation(trajectory(blocks, rules.warm_up.metric))
    spans = [issue_seconds([block]) for block in blocks if block.last_issue_ns > block.first_issue_ns]
    passes = math.ceil((rules.quantile * varies / asked.precision) ** 2)
    latency = sorted(chain.from_iterable(block.latency_ns for block in blocks))
    return LeastDuration(
        floor_s=asked.seconds,
        latencies_s=asked.latencies * (percentile(latency, 90) / _NS) if latency else 0.0,
        precision_s=passes * median(spans) if spans and passes > rules.passes else 0.0,
        region_s=terms.least_seconds,
    )
