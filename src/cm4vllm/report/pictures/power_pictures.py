"""The power of a run: its figures in words, and the curve of watts over the session, the measured window shaded."""

from collections.abc import Iterator

from cm4vllm import SIMULATED_POWER_NOTICE
from cm4vllm.common.number_texts import rate
from cm4vllm.records.power.samples import SAMPLES
from cm4vllm.records.power.session import Phase
from cm4vllm.report.pictures.canvas import Canvas, Picture, Table
from cm4vllm.results.model import Performance
from cm4vllm.results.recorded_power import RecordedPower, recorded_power


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
