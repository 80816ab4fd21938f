"""Energy of counters in words, as figures and in comparisons: never without the name that tells it from power."""

import io
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.energy import CountedEnergy, RunEnergy, Scope
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.report.energy_words import energy_notes, energy_table, energy_words
from cm4vllm.report.final_table import final_table
from cm4vllm.report.summary import render
from cm4vllm.results.campaign_results import load
from cm4vllm.results.energy_figures import ENERGY_LABELS, energy_figures
from cm4vllm.results.model import Performance
from cm4vllm.submission.capsule.comparison import compare_paths

LABEL = "GPU energy, not MLPerf power"


@pytest.fixture
def runs(real_runs: Path, tmp_path: Path) -> Path:
    """A copy of a rehearsal's folder."""
    return Path(shutil.copytree(real_runs, tmp_path / "one"))


def counted(name: str, scope: Scope, joules: float, **more: object) -> CountedEnergy:
    values = {"method": "composed for this test", "unit_j": 1e-3, "within_j": 0.5, "first": (-0.1, 1), "last": (9, 2)}
    return CountedEnergy(name=name, scope=scope, joules=joules, **{**values, **more})


GPUS = [counted(f"GPU {place}", Scope.GPU, 1000.0 + place) for place in range(2)]
MEASURED = RunEnergy(
    seconds=10.0,
    counters=[*GPUS, counted("GPU 2", Scope.GPU, 500.0, serves=False), counted("package-0", Scope.CPU, 300.0)],
)
NONE = RunEnergy(seconds=10.0, not_measured=["GPU board: no GPU", "CPU package: no counter"])


def with_energy(out: Path, energy: RunEnergy | None) -> Performance:
    """Put energy into the record of each performance run; return one of these runs, as it is read."""
    for path in out.glob(f"runs/*/*/*/performance/{RUN_FILE}"):
        path.chmod(0o644)
        write_record(path, replace(read_record(path, RunRecord), energy=energy))
    part = load(out).results[0].performance
    assert part is not None
    return part


def test_joules_and_tokens_for_a_joule_stand_under_their_own_name(runs: Path) -> None:
    part = with_energy(runs, MEASURED)
    figures = {figure.name: figure for figure in energy_figures(part)}
    assert set(figures) == set(ENERGY_LABELS) and part.metric is not None
    assert (figures["gpu_energy"].value, figures["gpu_energy"].unit) == (2001.0, "J")
    assert figures["gpu_efficiency"].value == pytest.approx(part.metric.value * 10.0 / 2001.0)
    assert figures["gpu_efficiency"].unit == "tokens/J" and figures["gpu_efficiency"].source.file.endswith(RUN_FILE)
    lines = energy_words(part)
    assert [line.partition(": ")[0] for line in lines] == [LABEL, "CPU package energy, not MLPerf power"]
    assert "2,001.0 J, " in lines[0] and lines[0].endswith("tokens/J (2 GPU boards)")
    table = energy_table(part)
    assert table is not None and len(table.rows) == 4 and "not counted" in table.rows[2][0]
    assert table.rows[0][1:5] == ("GPU board", "composed for this test", "1,000.0", "100.00")
    assert energy_notes(part)[0].startswith("Not included: fans")


def test_pages_and_the_table_name_it_and_a_published_page_has_none(runs: Path) -> None:
    with_energy(runs, MEASURED)
    report = load(runs)
    assert f"Offline {LABEL}: 2,001.0 J" in final_table(report, stream=io.StringIO())
    page = render(report)
    assert page.count(f"{LABEL}: 2,001.0 J") == 2 and "energy by counters, not MLPerf power" in page
    published = render(load(runs), published=True)
    assert "MLPerf power" not in published and "2,001.0 J" not in published


def test_no_sensor_is_not_measured_and_an_older_record_says_nothing(runs: Path) -> None:
    part = with_energy(runs, NONE)
    assert energy_words(part) == [f"{LABEL}: not measured"] and energy_figures(part) == []
    assert energy_notes(part) == [
        "Energy not measured: GPU board: no GPU.",
        "Energy not measured: CPU package: no counter.",
    ]
    page = render(load(runs))
    assert f"{LABEL}: not measured" in page and "Energy not measured: GPU board: no GPU." in page
    assert LABEL not in final_table(load(runs), stream=io.StringIO())
    part = with_energy(runs, None)
    assert energy_words(part) == [] and energy_table(part) is None and energy_notes(part) == []


def test_a_comparison_has_it_under_its_own_name(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs, other)
    with_energy(runs, MEASURED)
    more = [replace(counter, joules=2 * counter.joules) for counter in MEASURED.counters]
    with_energy(other, replace(MEASURED, counters=more))
    block = compare_paths([runs, other]).blocks[0]
    rows = {row.name: row for row in block.rows}
    assert set(ENERGY_LABELS.values()) <= set(rows)
    assert rows[LABEL].better == "" and rows[ENERGY_LABELS["gpu_efficiency"]].better == "higher"
    shift = rows[LABEL].cells[1].shift
    assert shift is not None and shift.change == pytest.approx(1.0)
