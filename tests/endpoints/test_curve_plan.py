"""The plan of a curve: points, passes that suffice for the window, one more point, moved ends."""

import json
import random

import pytest
from made_points import BENCHMARK as STATUS_BENCHMARK
from made_points import point_record
from msgspec.structs import replace

from cm4vllm.campaign.endpoints.job import schedule
from cm4vllm.campaign.endpoints.settings import EndpointsJob, EndpointsSettings, point_options
from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import write_record
from cm4vllm.endpoints.curve_plan import coverage_words, plan_curve, rate_at, require_coverage
from cm4vllm.endpoints.curve_search import _gaps, _highest, given_points
from cm4vllm.endpoints.plan_words import foreseen_table, moved_ends, one_more_point, plan_lines
from cm4vllm.endpoints.records import CurveRecord, MeasuredPoint, Probe, curve_status
from cm4vllm.endpoints.steady_state import SteadyState
from cm4vllm.results.endpoints.curves import POINT_FILE
from cm4vllm.rules import endpoints_rules

pytestmark = pytest.mark.usefixtures("any_day")

RULES = endpoints_rules()
BENCHMARK = RULES.benchmark("llama3_1-8b")
RATES = {1: 2.0, 512: 80.0}


def record(plan):
    probes = tuple(
        Probe(concurrency=at, samples=32, samples_per_second=rate, overhead_s=6.0) for at, rate in RATES.items()
    )
    return CurveRecord(plan=plan, probes=probes, identity="", found_at="2026-11-24T00:00:00+00:00")


def test_the_planned_window_has_the_passes_and_the_seconds_of_the_rules_after_what_is_left_out():
    draw, window = random.Random(1), RULES.window
    for _ in range(20):
        rates = {1: draw.uniform(0.1, 9), 4096: draw.uniform(10, 900)}
        plan = plan_curve(RULES, BENCHMARK, rates, c_min=draw.randint(1, 8), c_max=draw.randint(200, 4096))
        for point in plan.points:
            in_window = point.passes - window.warm_up.least
            assert in_window >= window.passes
            seconds = in_window * BENCHMARK.samples / rate_at(rates, point.concurrency)
            assert seconds >= 1.1 * point.terms.least_seconds


def test_answers_that_take_long_make_the_window_longer_but_not_that_of_a_run_of_all_at_once():
    """At 0.5 samples/s and 300 requests in flight an answer takes 600 s, of which a window takes five."""
    few = replace(BENCHMARK, samples=100)
    plan = plan_curve(RULES, few, {1: 0.5, 300: 0.5}, c_min=1, c_max=300, elected_offline=False)
    *points, offline = plan.points
    assert points[0].passes == 1 + 4
    # Beside the 1.1 * 3,000 s of the window, three passes until the first answers are there.
    assert points[-1].passes == 3 + 17
    assert offline.passes == 7


def test_a_rehearsal_leaves_the_seconds_out_and_keeps_the_passes():
    plan = plan_curve(RULES, BENCHMARK, RATES, c_min=1, c_max=512, at_full_length=False)
    assert {point.passes for point in plan.points} == {5}


def test_points_that_leave_a_region_out_are_refused_with_the_words_of_the_plan():
    points = (3, 8, 16, 24, 32, 40)
    curve = RULES.regions(c_min=3, c_max=40)
    words = coverage_words(RULES, curve, points)
    assert words.startswith("--points=3,8,16,24,32,40 leaves Low (4 to 6) without a point")
    with pytest.raises(UsageError) as refused:
        require_coverage(RULES, curve, points)
    assert refused.value.what == words
    assert coverage_words(RULES, RULES.regions(c_min=1, c_max=40), (1, 2, 4, 7, 13, 23, 40)) == ""


def test_moved_ends_say_what_becomes_of_the_regions():
    lowest, highest = moved_ends(RULES, (1, 3, 9, 24, 65, 182, 400, 512))
    assert (
        lowest == "with 3 as the lowest point: Low 4 to 11; Medium 12 to 67; High 68 to 512; each region keeps a point"
    )
    assert highest.startswith("with 400 as the highest point: Low 2 to 8; ")
    lowest, highest = moved_ends(RULES, (1, 8, 16, 24, 32, 40, 41))
    assert "leaves Low (9 to 11) without a point" in lowest
    *_, highest = moved_ends(RULES, (1, 2, 4, 7, 13, 23, 40))
    assert "the curve would not be allowed: C_max is at least 33" in highest


def test_one_more_point_splits_the_widest_step():
    (line,) = one_more_point(RULES, (1, 2, 4, 7, 13, 23, 92), {23: 60.0, 92: 120.0})
    assert "(--point_count=8) would lie at 46 and split the widest step, 23 to 92 (4 times)" in line
    assert line.endswith("into 2 and 2 times; about 1.5 min")
    assert list(one_more_point(RULES, tuple(range(1, 33)))) == []


def test_the_plan_in_lines_names_points_regions_accuracy_minutes_and_their_source():
    plan = plan_curve(RULES, BENCHMARK, RATES, c_min=1, c_max=512)
    lines = list(plan_lines(RULES, record(plan)))
    assert lines[0] == "regions: Ultra Low 1 to 32; Low 2 to 9; Medium 10 to 65; High 66 to 512"
    assert sum("with accuracy" in line for line in lines) == RULES.accuracy.points - 1
    total = next(line for line in lines if line.startswith("7 points: "))
    assert "by the probes of 2026-11-24 (2 samples/s at 1, 80 samples/s at 512)" in total
    assert f"{sum(point.all_seconds + 6 for point in plan.points) / 60:,.0f} min" in total


def test_foreseen_and_measured_minutes_stand_side_by_side():
    plan = plan_curve(RULES, BENCHMARK, RATES, c_min=1, c_max=512, at_full_length=False)
    made = record(plan)
    foreseen = made.foreseen_s(plan.points[1])
    measured = point_record(plan.points[1].terms, samples=320, wall_s=1.25 * foreseen, others=0.12)
    lines = foreseen_table(made, {2: measured}).splitlines()
    assert len(lines) == 2
    assert lines[1].split() == ["2", "3", f"{foreseen / 60:,.2f}", f"{1.25 * foreseen / 60:,.2f}", "+25%", "12.0%"]


def test_minutes_that_were_foreseen_on_a_busy_machine_are_called_so():
    plan = plan_curve(RULES, BENCHMARK, RATES, c_min=1, c_max=512)
    made = record(plan)
    assert not any("other programs" in line for line in plan_lines(RULES, made))
    busy = replace(made, probes=tuple(replace(probe, others=0.4) for probe in made.probes))
    assert any("other programs used up to 40.0% of the processors" in line for line in plan_lines(RULES, busy))


def test_given_points_are_whole_numbers_in_their_order():
    assert given_points(" 40, 1,7,7 ") == (1, 7, 40)
    for text in ("1,x", "0,2", "1,-2", "1,²", "9" * 5000):
        with pytest.raises(UsageError, match="names"):
            given_points(text)


def test_the_search_ends_where_twice_the_concurrency_gains_little():
    probed = []

    def probe(concurrency):
        probed.append(concurrency)
        rate = min(concurrency, 140) * 1.0
        return Probe(concurrency=concurrency, samples=1, samples_per_second=rate, overhead_s=0.0)

    assert _highest(probe, RULES.curve.lowest_c_max, 10_000) == 132
    assert probed == [33, 66, 132, 264]


def test_probes_that_lie_far_apart_get_others_between_them():
    assert list(_gaps([40, 1])) == [6]
    assert list(_gaps([1, 16])) == []
    assert sorted(_gaps([1, 4096])) == [8, 64, 512]


# --- the status of a curve, from the run folders of the points that are measured


PLAN = plan_curve(RULES, STATUS_BENCHMARK, {1: 2.0, 512: 80.0}, c_min=1, c_max=512, at_full_length=False)
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


# --- points whose server has further options: it is started again where they change, and only there


POINTS = "1,2,4,7,13,23,40"
GIVEN = tuple(map(int, POINTS.split(",")))


def test_options_are_those_of_the_named_points():
    asked = "23,40: --max-num-seqs=64 --enforce-eager; 2: --max-num-seqs=4"
    options = point_options(asked, GIVEN, served=False)
    both = "--max-num-seqs=64 --enforce-eager"
    assert options == {23: both, 40: both, 2: "--max-num-seqs=4"}
    assert point_options(" ", (), served=True) == {}


@pytest.mark.parametrize(
    ("text", "points", "served", "words"),
    [
        ("5: --a", GIVEN, False, "names '5', which is none of --points=1,2,4"),
        ("9" * 5000 + ": --a", GIVEN, False, "which is none of --points=1,2,4"),
        ("²: --a", GIVEN, False, "names '²', which is none of --points=1,2,4"),
        ("23 --a", GIVEN, False, "names no options"),
        ("23: 'a", GIVEN, False, "cannot be read"),
        ("23: --a", (), False, "needs --points"),
        ("23: --a", GIVEN, True, "no effect with --api_server"),
    ],
)
def test_what_cannot_be_is_refused(text, points, served, words):
    with pytest.raises(UsageError, match=words):
        point_options(text, points, served=served)


def test_a_server_is_started_where_the_options_change(tmp_path):
    asked = {"points": POINTS, "point_args": "4,7,40: --max-num-seqs=8", "extra_args": "--x"}
    job = EndpointsJob.of(EndpointsSettings(output_dir=str(tmp_path), **asked))
    steps = [step for step in schedule(job) if step.name.startswith(("server", "point"))]
    assert [step.name for step in steps] == [
        "server",
        "point 1",
        "point 2",
        "server from point 3 on",
        "point 3",
        "point 4",
        "server from point 5 on",
        "point 5",
        "point 6",
        "server from point 7 on",
        "point 7",
    ]
    inputs = {step.name: step.inputs.extra for step in steps if "server" in step.name}
    assert list(inputs.values()) == [None, "--x --max-num-seqs=8", "--x", "--x --max-num-seqs=8"]
