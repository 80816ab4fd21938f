"""The status of a curve, from the run folders of the points that are measured."""

import json

from made_points import BENCHMARK, point_record
from msgspec.structs import replace

from cm4vllm.common.records import write_record
from cm4vllm.endpoints.curve_plan import plan_curve
from cm4vllm.endpoints.curve_status import MeasuredPoint, curve_status
from cm4vllm.endpoints.records import CurveRecord, Probe
from cm4vllm.endpoints.steady_state import SteadyState
from cm4vllm.results.endpoints.curves import POINT_FILE

PLAN = plan_curve(BENCHMARK, {1: 2.0, 512: 80.0}, c_min=1, c_max=512, at_full_length=False)
CURVE = CurveRecord(
    plan=PLAN,
    probes=(Probe(concurrency=1, samples=32, samples_per_second=2.0, overhead_s=6.0),),
    identity="",
    found_at="2026-11-24T00:00:00+00:00",
)


def measured(folder, number):
    """Write the files of a point that the status is made from."""
    point = PLAN.points[number - 1]
    state = SteadyState(status="insufficient_passes", verdict="not found")
    record = point_record(point.terms, samples=point.samples, curve=PLAN.regions, steady_state=state)
    (folder / "performance").mkdir(parents=True)
    summary = {"tps": 100.0 * number, "tpot": {"percentiles": {"99.0": 9e6, "90.0": 4e6}}}
    (folder / "performance" / "result_summary.json").write_text(json.dumps(summary))
    write_record(folder / POINT_FILE, record)


def test_the_status_has_the_measured_points_and_the_seconds_foreseen_of_all(tmp_path):
    measured(tmp_path / "point-1", 1)
    measured(tmp_path / "point-3", 3)
    (tmp_path / "point-2").mkdir()  # it was not measured to its end
    status = curve_status(CURVE, 4, tmp_path)
    assert [point.number for point in status.points] == [1, 3]
    assert status.points[1] == MeasuredPoint(
        number=3,
        concurrency=PLAN.points[2].concurrency,
        tokens_per_second=300.0,
        tokens_per_second_per_user=250.0,
        steady_state="insufficient_passes",
    )
    assert (status.number, status.count, status.concurrency) == (4, 7, PLAN.points[3].concurrency)
    assert status.foreseen_s == tuple(round(point.all_seconds + 6, 1) for point in PLAN.points)
    later = status.after(5, 9, 1.26)
    assert (later.done, later.total, later.elapsed_s, later.points) == (5, 9, 1.3, status.points)


def test_a_slow_first_start_of_the_client_does_not_count_for_every_point():
    probes = [Probe(concurrency=1, samples=32, samples_per_second=2.0, overhead_s=own) for own in (15.0, 9.0, 10.0)]
    point = PLAN.points[0]
    assert replace(CURVE, probes=tuple(probes)).foreseen_s(point) == point.all_seconds + 10.0
