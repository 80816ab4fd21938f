"""The power of published runs in words and as a curve."""

import re
import shutil
from pathlib import Path

import pytest

from cm4vllm.report.pictures.power_pictures import power_pictures, power_words
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.model import Performance
from cm4vllm.results.recorded_power import RecordedPower, recorded_power
from cm4vllm.submission.capsule.comparison import compare_paths

GPU = "v4.1-nvidia-h200-maxq-llama2-70b-99-offline"
STREAM = "v4.1-untether-h13-resnet50-singlestream"


def part_of(published: Path, name: str) -> Performance:
    part = Reader(published).performance(published / name / "run_1", None)
    assert part is not None
    return part


def power_of(published: Path, name: str) -> RecordedPower:
    power = recorded_power(part_of(published, name))
    assert power is not None
    return power


@pytest.mark.parametrize(("name", "tokens"), [(GPU, 4.11), ("v5.1-lenovo-b200-llama2-70b-99-offline", 9.89)])
def test_tokens_per_joule_are_those_that_an_independent_program_computed(
    published_power: Path, name: str, tokens: float
) -> None:
    power = power_of(published_power, name)
    assert power.efficiency is not None and power.efficiency.unit == "tokens/J"
    assert power.efficiency.value == pytest.approx(tokens, abs=0.005)


def test_the_figures_of_a_session(published_power: Path) -> None:
    power = power_of(published_power, GPU)
    assert power_words(power) == "6,152.984 W, 4.11 tokens/J" and not power.simulated
    assert power.samples == 3116 and power.peak == 6219.0
    assert power.idle is not None and 2400 < power.idle < 3000
    assert power.ranging == pytest.approx(6215.968, abs=0.001)
    assert power.uncertainty == pytest.approx((0.3121, 0.5155))


def test_a_result_that_is_compared_by_a_latency_has_the_energy_of_a_query(published_power: Path) -> None:
    power = power_of(published_power, STREAM)
    assert power_words(power).startswith("29.239 mJ/query, ") and power.efficiency is not None
    assert power.efficiency.unit == "queries/J"


def test_the_curve_has_the_window_the_mean_and_a_table(published_power: Path) -> None:
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


def test_a_run_without_a_session_has_no_curve(published_power: Path, tmp_path: Path) -> None:
    log = published_power / GPU / "run_1" / "mlperf_log_detail.txt"
    (tmp_path / "run_1").mkdir()
    for name in ("mlperf_log_detail.txt", "mlperf_log_summary.txt"):
        (tmp_path / "run_1" / name).write_bytes(log.with_name(name).read_bytes())
    part = Reader(tmp_path).performance(tmp_path / "run_1", None)
    assert part is not None and list(power_pictures(part)) == []


def scaled(text: str, factor: float) -> str:
    return re.sub(r"Watts,([\d.]+)", lambda match: f"Watts,{float(match[1]) * factor:.6f}", text)


def test_two_results_with_power_are_compared_by_it(published_power: Path, tmp_path: Path) -> None:
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
