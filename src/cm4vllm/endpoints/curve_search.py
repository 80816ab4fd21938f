"""The curve of a server: short runs of the reference client measure its rates, then the points are placed."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from cm4vllm.common import input_types
from cm4vllm.common.clock import now
from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.files import altered_files
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.endpoints.curve_plan import plan_curve
from cm4vllm.endpoints.plan_words import plan_lines
from cm4vllm.endpoints.point import PointInputs, measure_point, point_setup
from cm4vllm.endpoints.records import CURVE_FILE, CurveRecord, PointRecord, Probe
from cm4vllm.results.endpoints.curves import POINT_FILE
from cm4vllm.rules import RulesUsed

#: The search for C_max ends where twice the concurrency gives less than this part more samples/s.
_LEAST_GAIN = 0.1
#: Samples of a probe for each request in flight: most of them are answered at the full concurrency.
_SAMPLES_IN_FLIGHT = 4
_FEWEST_SAMPLES = 32
#: Between probes that lie further apart there is another: a server does not gain evenly over them.
_WIDEST_GAP = 16


class CurveInputs(Settings, frozen=True, kw_only=True):
    """Inputs of a curve: its two ends (0: search for this end) or the list of its points, and the number of points."""

    c_min: input_types.CurveMin = 0
    c_max: input_types.CurveMax = 0
    points: input_types.CurvePoints = ""
    count: input_types.CurvePointCount = 0
    offline: input_types.CurveOffline = "elected"
    rehearsal: Annotated[bool, Key("CM_MLPERF_ENDPOINTS_REHEARSAL")] = False
    output_dir: Annotated[str, Key("CM_MLPERF_ENDPOINTS_CURVE_DIR")] = ""


def find_curve(inputs: CurveInputs, point: PointInputs) -> tuple[CurveRecord, Path]:
    """Probe the server, place the points, and return the record and its path. Raises CmError.

    `point` has the records of model, dataset, server and client.
    """
    rules, benchmark = point.rules.chosen(), point_setup(_any_point(point)).benchmark
    folder, given = Path(inputs.output_dir).absolute(), given_points(inputs.points)
    probes: list[Probe] = []

    def probe(concurrency: int) -> Probe:
        probes.append(_probe(point, concurrency, folder))
        return probes[-1]

    low, high = (given[0], given[-1]) if given else (inputs.c_min or 1, inputs.c_max)
    probe(low)
    high = probe(high).concurrency if high else _highest(probe, rules.curve.lowest_c_max, benchmark.samples)
    for between in _gaps([probe.concurrency for probe in probes]):
        probe(between)
    plan = plan_curve(
        rules,
        benchmark,
        {probe.concurrency: probe.samples_per_second for probe in probes},
        c_min=low,
        c_max=high,
        points=given,
        count=inputs.count,
        elected_offline=inputs.offline == "elected",
        at_full_length=not inputs.rehearsal,
    )
    record = CurveRecord(
        plan=plan,
        probes=tuple(probes),
        identity=curve_identity(inputs, point),
        found_at=now(),
        rules=RulesUsed.of(rules),
    )
    write_record(folder / CURVE_FILE, record)
    for line in plan_lines(rules, record):
        say(line)
    return record, folder / CURVE_FILE


def earlier_curve(inputs: CurveInputs, point: PointInputs) -> tuple[CurveRecord | None, str]:
    """Return the record of a curve that was made from the same inputs, else None and the reason.

    Probes whose files were changed or removed since are such a reason.
    """
    folder = Path(inputs.output_dir).absolute()
    if not (folder / CURVE_FILE).exists():
        return None, ""
    record = read_record(folder / CURVE_FILE, CurveRecord)
    if record.identity != curve_identity(inputs, point):
        return None, "its inputs have changed"
    why_not = next(filter(None, (_probe_change(folder, probe) for probe in record.probes)), "")
    return (None, why_not) if why_not else (record, "")


def _probe_change(folder: Path, probe: Probe) -> str:
    """Return in words how a probe differs from what it was when the curve was made; empty where it does not."""
    place = folder / f"probe-{probe.concurrency}"
    try:
        made = read_record(place / POINT_FILE, PointRecord)
    except CmError as error:
        return error.what
    if changed := altered_files(place, made.files):
        return f"files of {place.name} have been changed or removed: {', '.join(changed)}"
    return "" if made.samples_per_second == probe.samples_per_second else f"{place.name} is another run"


def given_points(text: str) -> tuple[int, ...]:
    """Return the concurrencies of --points, in their order. Raises UsageError for other texts."""
    numbers = {part.strip(): whole_number(part) or 0 for part in text.split(",") if part.strip()}
    if wrong := [part for part, number in numbers.items() if not number]:
        raise UsageError(f"--points={text} names {wrong[0]!r}", remedy="give whole numbers of requests in flight")
    return tuple(sorted(set(numbers.values())))


def _highest(probe: Callable[[int], Probe], concurrency: int, most: int) -> int:
    """Return C_max: the concurrency, from a lowest one up to `most`, from which doubling gains little."""
    rate = probe(concurrency).samples_per_second
    while 2 * concurrency <= most:
        higher = probe(2 * concurrency).samples_per_second
        if higher < (1 + _LEAST_GAIN) * rate:
            break
        concurrency, rate = 2 * concurrency, higher
    return concurrency


def _gaps(probed: Sequence[int]) -> Iterator[int]:
    """Yield concurrencies between the probed ones, each the geometric mean of its neighbours, until no gap is wide."""
    for low, high in pairwise(sorted(probed)):
        if high / low > _WIDEST_GAP:
            middle = round(math.sqrt(low * high))
            yield middle
            yield from _gaps((low, middle, high))


def _probe(point: PointInputs, concurrency: int, folder: Path) -> Probe:
    """Make a short run at a concurrency."""
    samples = max(_FEWEST_SAMPLES, _SAMPLES_IN_FLIGHT * concurrency)
    inputs = msgspec.structs.replace(
        point,
        concurrency=concurrency,
        samples=samples,
        accuracy=False,
        offline="none",
        c_min=0,
        c_max=0,
        output_dir=str(folder / f"probe-{concurrency}"),
    )
    record, _ = measure_point(inputs)
    return Probe(
        concurrency=concurrency,
        samples=samples,
        samples_per_second=record.samples_per_second,
        overhead_s=round(record.wall_s - record.duration_s, 3),
        others=record.others,
    )


def _any_point(point: PointInputs) -> PointInputs:
    """Return the inputs of a point at any concurrency: model, dataset, server and client are those of all points."""
    return msgspec.structs.replace(point, concurrency=1, c_min=0, c_max=0, output_dir="probe")


def curve_identity(inputs: CurveInputs, point: PointInputs) -> str:
    """Return the digest of all that a curve depends on."""
    own = msgspec.json.encode(msgspec.structs.replace(inputs, output_dir=""))
    return hashlib.sha256(point_setup(_any_point(point)).identity.encode() + own).hexdigest()
