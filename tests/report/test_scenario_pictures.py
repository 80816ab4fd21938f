"""The pictures of a run: what they are drawn from, that no value is lost in them, and how small they are."""

import re
import shutil
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import msgspec
import numpy as np
import pytest

from builders import metrics_sample
from cm4vllm.common.number_texts import ms, rate
from cm4vllm.common.units import Milliseconds
from cm4vllm.records.accuracy import Score
from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.records.metrics import GpuSample, GpusSample
from cm4vllm.records.sample_times import FIELDS, SAMPLES_FILE, read_sample_times
from cm4vllm.report.pictures.canvas import MAX_POINTS, WIDTH, Axis, Canvas, latency_bar, score_bar, trace
from cm4vllm.report.pictures.power_pictures import power_pictures, power_words
from cm4vllm.report.pictures.scenario_pictures import pictures
from cm4vllm.report.pictures.timelines import _length_bins, gpu_pictures
from cm4vllm.results.campaign_results import load
from cm4vllm.results.figures import Latency
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.model import Performance
from cm4vllm.results.recorded_power import recorded_power
from cm4vllm.submission.capsule.capsules_at_path import compare_paths

pytestmark = pytest.mark.xdist_group("runs-report")  # one process makes the runs of these files


def titled(drawn, title):
    return next(picture for picture in drawn if picture.title.startswith(title))


@pytest.fixture(scope="session")
def drawn(measured_runs):
    return {result.scenario: pictures(result) for result in load(measured_runs).results}


def test_a_rehearsal_has_at_least_eight_pictures(drawn):
    assert [picture.title for picture in drawn["Server"]] == [
        "TTFT: distribution",
        "TPOT: distribution",
        "TTFT over the run",
        "Tokens per second",
        "Requests running and waiting",
        "KV cache in use",
        "Length of the prompts",
        "Length of the answers",
        "The 10 slowest samples",
        "Time of a request in the server",
        "Why answers ended",
        "Accuracy against the reference",
    ]
    # Beside these, the server's own where it was sampled often enough in the short run.
    assert {
        "Samples answered",
        "Length of the prompts",
        "Length of the answers",
        "Time of a request in the server",
        "Why answers ended",
        "Accuracy against the reference",
    } <= {picture.title for picture in drawn["Offline"]}


def test_each_picture_has_words_shapes_a_table_and_a_source(drawn):
    for picture in (*drawn["Offline"], *drawn["Server"]):
        assert picture.words and picture.shapes and picture.source.startswith("runs/"), picture.title
        assert all(table.rows and all(len(row) == len(table.head) for row in table.rows) for table in picture.tables)
        for shape in picture.shapes:
            numbers = [value for value in shape.attributes.values() if not isinstance(value, str)]
            assert all(-1 <= value <= 441 for value in numbers), (picture.title, shape)


def test_the_percentiles_beside_a_distribution_are_loadgens(measured_runs, drawn):
    log = read_detail_log(next(measured_runs.glob("runs/*/*/Server/performance")) / DETAIL_LOG)
    table = titled(drawn["Server"], "TTFT: d").tables[0]
    logged = {row[0]: row[1] for row in table.rows}
    for name, key in (("p50", "50.00"), ("p90", "90.00"), ("p99", "99.00"), ("p99.9", "99.90")):
        assert logged[name] == ms(log.number(f"result_first_token_{key}_percentile_latency_ns") / 1e6)


def test_every_sample_is_in_a_distribution_once(measured_runs, drawn):
    rows = read_sample_times(next(measured_runs.glob("runs/*/*/Server/performance")))
    for title in ("TTFT: d", "Length of the p", "Length of the a"):
        bins = titled(drawn["Server"], title).tables[-1]
        assert sum(int(row[2].replace(",", "")) for row in bins.rows) == len(rows), title
        assert bins.rows[-1][3] == "100.0%"


@pytest.mark.parametrize(
    ("low", "high", "logarithmic"), [(0, 0, False), (17, 60, False), (1, 128, True), (40, 9000, True)]
)
def test_the_bars_of_lengths_are_equally_wide_on_their_axis_and_hold_every_length(low, high, logarithmic):
    canvas, edges = _length_bins(low, high)
    places = [canvas.x.at(edge) for edge in edges]
    widths = [right - left for left, right in pairwise(places)]
    assert canvas.x.logarithmic is logarithmic and max(widths) - min(widths) <= 0.25
    assert sum(np.histogram(np.arange(low, high + 1), edges)[0]) == high - low + 1


def test_without_samples_the_percentiles_of_loadgen_are_drawn(real_runs):
    drawn = pictures(load(real_runs).results[1])
    picture = titled(drawn, "TTFT: d")
    assert "LoadGen's percentiles alone" in picture.source
    assert any(shape.attributes["class"] == "mark-limit" for shape in picture.shapes)
    assert not any(shape.attributes["class"] == "bar-1" for shape in picture.shapes)


def test_gpus_that_were_sampled_have_pictures_of_their_load_and_power(measured_runs):
    part = load(measured_runs).results[0].performance
    assert isinstance(part, Performance) and not list(gpu_pictures(part, [], "x"))
    looks = [
        GpusSample(
            at_s=2.0 * step,
            gpus=[
                GpuSample(
                    index=place, name="NVIDIA H100 80GB HBM3", utilisation=0.5 + 0.05 * place, power_w=300.0 + 10 * step
                )
                for place in range(8)
            ],
        )
        for step in range(200)
    ]
    load_of, power = gpu_pictures(part, looks, "runs/gpu_metrics.jsonl")
    assert load_of.words.startswith("Part of the time in which 8 GPUs worked: 67.5%")
    assert load_of.tables[-1].rows[7] == ("7: NVIDIA H100 80GB HBM3", "85.0", "85.0")
    assert len(load_of.tables[0].rows) <= 12
    assert "10,360.00 W in the mean, 18,320.00 W at most" in power.words
    assert float(power.tables[0].rows[-1][3].replace(",", "")) == 8 * (300 + 10 * 199)
    assert f"{rate(part.figures['tokens_per_second'].value / 10360)} tokens per joule" in power.words


@pytest.fixture(scope="session")
def many(measured_runs, tmp_path_factory):
    """400,000 samples: TTFT of about 100 ms, and one of 9 s; answers of 40 tokens, and one of 128."""
    folder = tmp_path_factory.mktemp("many")
    draw, rows = np.random.default_rng(1), np.zeros(400_000, FIELDS)
    rows["issued_ns"] = np.sort(draw.uniform(0, 600e9, len(rows)).astype(np.int64))
    rows["first_ns"] = rows["issued_ns"] + draw.lognormal(np.log(100e6), 0.3, len(rows)).astype(np.int64)
    rows["tokens"], rows["prompt_tokens"], rows["index"] = 40, 60, np.arange(len(rows)) % 13368
    rows["first_ns"][7777] = rows["issued_ns"][7777] + 9_000_000_000
    rows["last_ns"] = rows["first_ns"] + 40 * 10_000_000
    rows["tokens"][99], rows["last_ns"][99] = 128, rows["first_ns"][99] + 1_280_000_000
    np.save(folder / SAMPLES_FILE, rows)
    return folder


def test_400_000_samples_make_small_pictures_that_keep_the_tail(measured_runs, many):
    result = load(measured_runs).results[1]
    part = result.performance
    assert isinstance(part, Performance)
    drawn = pictures(replace(result, performance=replace(part, folder=many)))
    assert sum(len(picture.shapes) for picture in drawn) < 1000
    ttft = titled(drawn, "TTFT: d")
    last = ttft.tables[-1].rows[-1]
    assert last[2] == "1" and float(last[1].replace(",", "")) >= 9000
    bar = [shape for shape in ttft.shapes if shape.tag == "rect"][-1]
    assert bar.attributes["height"] >= 2 and "1 samples" in bar.hint
    assert max(float(row[3].replace(",", "")) for row in titled(drawn, "TTFT over").tables[0].rows) == 9000
    slow = titled(drawn, "The 10 slowest").tables[0].rows
    assert slow[0][0] == str(7777 % 13368) and slow[0][-1].startswith("waited for its first token")
    assert slow[1][-1].startswith("long answer") and slow[1][6] == "128"


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [([1.0, 2.0, 20.0], False), ([1.0, 2000.0], True), ([3.0], False), ([0.0, 0.0], False), ([0.0, 5000.0], False)],
)
def test_an_axis_holds_its_values_and_has_round_ticks(values, logarithmic):
    axis = Axis.over(values, 50, 400)
    assert axis.logarithmic is logarithmic
    assert all(50 <= axis.at(value) <= 400 for value in values)
    assert 1 <= len(axis.ticks()) <= 12
    assert axis.edges(4)[0] == pytest.approx(axis.low) and axis.edges(4)[-1] == pytest.approx(axis.high)


def test_wherever_two_values_lie_no_line_crosses_the_words_of_the_other():
    words = "limit 20,000 ms"
    length = 8.4 * len(words)
    for values in combinations_with_replacement(range(0, 101, 2), 2):
        canvas = Canvas.over([0, 100], [1], rows=2)
        canvas.marks([(value, "mark-p99", words) for value in values])
        lines, texts = ([shape.attributes for shape in canvas.shapes if shape.tag == tag] for tag in ("line", "text"))
        for text in texts:
            left = text["x"] - length if text["class"].endswith(" end") else text["x"]
            assert left >= 0 and left + length <= WIDTH and text["y"] < canvas.y.end, values
            through = [line["x1"] for line in lines if line["y1"] < text["y"] and left < line["x1"] < left + length]
            assert through == [], values


# --- charts


def sample(at_s, running, waiting):
    return metrics_sample(at_s=at_s, running=running, waiting=waiting)


def latency(p99, limit):
    return Latency("TTFT", Milliseconds(p99), None, None if limit is None else Milliseconds(limit))


@pytest.mark.parametrize(
    ("p99", "limit", "bar", "left"),
    [(500, 2000, (25, 100, True), 0.75), (4000, 2000, (100, 50, False), -1), (2000, 2000, (100, 100, False), 0)],
)
def test_a_latency_is_drawn_against_its_limit(p99, limit, bar, left):
    drawn = latency_bar(latency(p99, limit))
    assert (drawn.value, drawn.high, drawn.met) == bar and latency(p99, limit).headroom == left
    assert latency_bar(latency(p99, None)) is None and latency(p99, None).headroom is None


def test_a_runs_requests_are_drawn_over_its_time_to_the_most_of_them(server_metrics):
    drawn = trace("run", server_metrics(), [sample(0, 0, 0), sample(5, 10, 40), sample(10, 20, 0)])
    assert drawn.running == "0.0,19.5 50.0,14.8 100.0,10.0"
    assert drawn.waiting == "0.0,19.5 50.0,0.5 100.0,19.5"
    drawn = trace("run", server_metrics(), [sample(float(i), i, 0) for i in range(1000)])
    assert 60 < len(drawn.running.split()) <= MAX_POINTS
    assert trace("run", server_metrics(), []).running == ""  # of many samples as many are drawn as can be seen


def test_a_score_is_drawn_against_its_window():
    score = Score(metric="GEN_LEN", label="gen_len", value=50.0, lower=80.0, upper=100.0, met=False)
    bar = score_bar(score)
    assert 0 < bar.value < bar.low < bar.high < 100 and not bar.met
    assert score_bar(msgspec.structs.replace(score, met=None)) is None
    open_ended = score_bar(Score(metric="ROUGE1", label="rouge1", value=0.0, lower=38.0, upper=None, met=False))
    assert open_ended.value == 0 and open_ended.high == 100


# --- the power of published runs in words and as a curve


GPU = "v4.1-nvidia-h200-maxq-llama2-70b-99-offline"
STREAM = "v4.1-untether-h13-resnet50-singlestream"


def part_of(published, name):
    part = Reader(published).performance(published / name / "run_1", None)
    assert part is not None
    return part


def test_the_figures_of_a_session(published_power):
    power = recorded_power(part_of(published_power, GPU))
    assert power_words(power) == "6,152.984 W, 4.11 tokens/J" and not power.simulated
    assert power.samples == 3116 and power.peak == 6219.0
    assert power.idle is not None and 2400 < power.idle < 3000
    assert power.ranging == pytest.approx(6215.968, abs=0.001)
    assert power.uncertainty == pytest.approx((0.3121, 0.5155))


def test_the_curve_has_the_window_the_mean_and_a_table(published_power):
    (picture,) = power_pictures(part_of(published_power, GPU))
    kinds = [shape.attributes["class"] for shape in picture.shapes]
    assert kinds[0] == "zone" and {"line-1", "line-2"} <= set(kinds)
    rows = dict(picture.tables[0].rows)
    assert rows["mean of the run"] == "6,152.984 W" and rows["mean of ranging"] == "6,215.968 W"
    assert rows["testing against ranging"] == "-1.0%"
    assert (rows["uncertainty, mean"], rows["uncertainty, greatest"]) == ("0.31%", "0.52%")
    assert rows["samples above zero in the window"] == "3,116 in 3,116.7 s"
    (streams,) = power_pictures(part_of(published_power, STREAM))
    assert dict(streams.tables[0].rows)["energy of a query"] == "29.238987 mJ/query"


def scaled(text, factor):
    return re.sub(r"Watts,([\d.]+)", lambda match: f"Watts,{float(match[1]) * factor:.6f}", text)


def test_two_results_with_power_are_compared_by_it(published_power, tmp_path):
    trees = []
    for name, factor in (("one", 1.0), ("other", 1.1)):
        home = tmp_path / name / "open" / "Somebody"
        folder = home / "results" / "a_system" / "llama2-70b-99" / "Offline" / "performance"
        shutil.copytree(published_power / GPU, folder, copy_function=shutil.copyfile)
        (home / "systems").mkdir()
        (home / "systems" / "a_system.json").write_text('{"system_name": "a system", "accelerators_per_node": "8"}')
        samples = folder / "run_1" / "spl.txt"
        samples.chmod(0o644)
        samples.write_text(scaled(samples.read_text(), factor))
        trees.append(tmp_path / name)
    (block,) = compare_paths(trees).blocks
    rows = {row.name: row for row in block.rows}
    power, work = rows["power"], rows["efficiency"]
    assert (power.unit, power.better, work.unit, work.better) == ("W", "", "tokens/J", "higher")
    assert [round(cell.figure.value, 3) for cell in power.cells if cell.figure] == [6152.984, 6768.283]
    assert work.cells[1].shift is not None and work.cells[1].shift.change == pytest.approx(1 / 1.1 - 1)
