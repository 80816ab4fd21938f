"""The shape of first-token times: distributions that serving does not make.

A client that holds early first tokens back, and reports them later, lowers TPOT, which is (last - first token) divided
by the tokens between, by the time it holds them. A finding says what was measured, never why.
"""

from collections.abc import Iterator

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.checks.subjects import measured
from cm4vllm.results.figures import Figures
from cm4vllm.results.model import Performance, Result

#: (p95 - p50) / p50 of TTFT below this is narrower than any published server has it: of 326 runs of language models in
#: rounds v4.1 and v5.1 the narrowest has 0.23.
NARROW = 0.01
#: From this on TPOT spreads, by the same measure.
SPREAD = 0.02
#: The distance within which the smallest TTFT is just above a round time, as a part of that time.
_JUST_ABOVE = 0.003
#: Two percentiles that differ by less than this part are one value, where those above them spread.
_SPIKE = 0.002

_SOURCE = "loadgen/logging.cc, TPOT is the time after the first token divided by the tokens after it"


@check(
    "TTFT-SHAPE",
    source=_SOURCE,
    remedy="make the client report first tokens at once, as they arrive",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=measured,
)
def shape(_: Result, part: Performance) -> Iterator[Fault]:
    """Times to the first token spread as those of a server do: neither all alike, nor cut off at a round time, nor many
    of one value.
    """
    figures, field = part.figures, "result_first_token_*_latency_ns"
    low, p50, p90, p95, p99 = (figures.value(f"ttft_{name}") for name in ("min", "p50", "p90", "p95", "p99"))
    if low is None or p50 is None or p90 is None or p95 is None or p99 is None or not (p50 and low):
        return
    tpot = _spread(figures, "tpot")
    wide = (p95 - p50) / p50
    if wide < NARROW and tpot is not None and tpot > SPREAD:
        yield Fault(
            "most times to the first token are alike while TPOT spreads",
            part.log,
            field,
            f"TTFT (p95 - p50)/p50 {wide:.2%}, TPOT {tpot:.2%}",
            f"TTFT {NARROW:.0%} or more",
        )
    elif (p90 - p50) / p50 < _SPIKE and (p99 - p50) / p50 > 10 * _SPIKE:
        yield Fault(
            "two fifths of the times to the first token have one value",
            part.log,
            field,
            f"p50 {p50:,.1f} ms, p90 {p90:,.1f} ms, p99 {p99:,.1f} ms",
            "p90 above p50",
        )
    if (edge := _edge(low)) and low > 0.5 * p50:
        yield Fault(
            "the smallest time to the first token lies just above a round time",
            part.log,
            field,
            f"min {low:,.3f} ms, p50 {p50:,.1f} ms",
            f"no edge at {edge:g} ms",
        )


def _spread(figures: Figures, name: str) -> float | None:
    p50, p95 = figures.value(f"{name}_p50"), figures.value(f"{name}_p95")
    return None if p50 is None or p95 is None or not p50 else (p95 - p50) / p50


def _edge(value: float) -> float | None:
    """Return the round time, a multiple of 100 ms, that `value` in ms lies just above; None where it does not."""
    edge = value // 100 * 100
    return edge if edge and (value - edge) / edge < _JUST_ABOVE else None
