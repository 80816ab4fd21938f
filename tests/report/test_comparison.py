"""Results side by side, with their differences, figures and notices: as text, as an object and as a page."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.records.run import RunRecord
from cm4vllm.records.sample_times import FIELDS, SAMPLES_FILE
from cm4vllm.report.comparison_texts import as_object, as_page, as_text, report_comparison
from cm4vllm.results.comparing.compared_settings import Group, compare_settings
from cm4vllm.results.comparing.uncertainty import Verdict
from cm4vllm.results.run_folders import open_results
from cm4vllm.submission.capsule.capsules_at_path import capsule_of_results, compare_paths
from cm4vllm.submission.capsule.rerun_file import read_capsule, write_capsule

pytestmark = pytest.mark.xdist_group("runs-report")  # one process makes the runs of these files

SYSTEMS = "4xH100-SXM-80GB_vLLM_{}-reference-cpu-pytorch-v2.3.1-default_config"


def row(comparison, scenario, name):
    (block,) = [block for block in comparison.blocks if block.scenario == scenario]
    return next(row for row in block.rows if row.name == name)


@pytest.fixture(scope="session")
def two(real_runs, tmp_path_factory):
    """A rehearsal, and another in which the server had another option and each answer took twice as long."""

    def with_option(run):
        server = replace(run.settings.server, argv=[*run.settings.server.argv, "--max-num-seqs=4"])
        return replace(run, settings=replace(run.settings, server=server))

    first, other = (
        changed(real_runs, tmp_path_factory.mktemp("two"), change) for change in (lambda run: run, with_option)
    )
    draw = np.random.default_rng(1)
    rows = np.zeros(400, FIELDS)
    rows["issued_ns"] = np.arange(400) * 10_000_000
    rows["first_ns"] = rows["issued_ns"] + draw.lognormal(np.log(100e6), 0.1, 400).astype(np.int64)
    rows["last_ns"] = rows["first_ns"] + 200_000_000
    rows["tokens"], rows["prompt_tokens"] = 20, 60
    np.save(next(first.glob("runs/*/*/Server/performance")) / SAMPLES_FILE, rows)
    folder = next(other.glob("runs/*/*/Server/performance"))
    log = (folder / DETAIL_LOG).read_text()
    (folder / DETAIL_LOG).write_text(
        re.sub(r'("key": "result_[\w.]+_ns", "value": )(\d+)', lambda match: f"{match[1]}{2 * int(match[2])}", log)
    )
    for name in ("first_ns", "last_ns"):
        rows[name] = rows["issued_ns"] + 2 * (rows[name] - rows["issued_ns"])
    np.save(folder / SAMPLES_FILE, rows)
    return first, other


def test_figures_come_before_the_settings_that_differ_and_the_others_are_counted(two):
    comparison = compare_paths(two)
    assert [(difference.group, difference.name, difference.values) for difference in comparison.differences] == [
        (Group.OPTIONS, "--max-num-seqs", ("", "4"))
    ]
    assert comparison.alike > 60
    text = list(as_text(comparison))
    assert text.index(
        f"Settings that differ ({comparison.alike} are the same, {comparison.unstated} not stated by all):"
    ) > next(place for place, line in enumerate(text) if line.startswith("llama3.1-8b Offline"))
    assert any(line.startswith("WARNING A: REHEARSAL") for line in text)


def test_rates_are_also_per_accelerator_where_all_systems_state_how_many(neural_magic):
    names = ("vLLM_8xL40S", "GO_2xRTX4090")
    systems = [next((neural_magic / "results").glob(f"{name}*")) for name in names]
    comparison = compare_paths(systems)
    assert any(len({side.accelerators for side in block.sides}) == 2 for block in comparison.blocks)
    for block in comparison.blocks:
        rows = {row.name: row for row in block.rows}
        names_ = list(rows)
        counts = [8 if side.capsule.system.startswith(names[0]) else 2 for side in block.sides]
        assert names_[0] == "tokens per second" and names_[1] == "tokens per second per accelerator"
        for whole, part, count in zip(rows[names_[0]].cells, rows[names_[1]].cells, counts, strict=True):
            assert whole.figure and part.figure and part.figure.value == pytest.approx(whole.figure.value / count)
            assert part.figure.source.field == f"{whole.figure.source.field}, divided by {count} accelerators"
        kinds = [name.split()[0] for name in names_ if name.split()[0] in ("tokens", "ttft", "tpot", "rouge1")]
        assert list(dict.fromkeys(kinds)) == [kind for kind in ("tokens", "ttft", "tpot", "rouge1") if kind in kinds]
    page = as_page(comparison)
    assert page.index('id="figures"') < page.index('id="settings"') < page.index("</main>")


def test_a_latency_that_doubled_is_really_worse_and_an_equal_figure_is_the_same(two):
    comparison = compare_paths(two)
    median = row(comparison, "Server", "ttft p50")
    assert median.cells[1].shift and median.cells[1].interval
    assert median.cells[1].shift.change == pytest.approx(1.0, abs=1e-6)
    assert median.cells[1].shift.verdict is Verdict.REAL
    p99 = row(comparison, "Server", "ttft p99").cells[1].shift
    assert p99 and p99.verdict is Verdict.UNKNOWN and "an interval needs 1,000" in p99.why
    same = row(comparison, "Offline", "tokens per second").cells[1].shift
    assert same and same.verdict is Verdict.SAME
    length = row(comparison, "Server", "tokens per sample")
    assert (length.unit, length.better) == ("tokens/sample", "") and length.cells[0].interval
    lines = [line for line in as_text(comparison) if line.startswith("ttft p50")]
    assert "+100.0%" in lines[0] and lines[0].endswith("worse: real")


@pytest.fixture(scope="session")
def capsules(two, tmp_path_factory):
    """The capsules of both."""
    folder = tmp_path_factory.mktemp("capsules")
    for name, out in zip("ab", two, strict=True):
        write_capsule(folder / f"{name}.yaml", capsule_of_results(out))
    return folder / "a.yaml", folder / "b.yaml"


def test_a_capsule_has_its_recorded_figures_and_intervals_beside_a_run(two, capsules):
    comparison = compare_paths([capsules[0], two[0], capsules[1]])
    assert [(difference.group, difference.name, difference.values) for difference in comparison.differences] == [
        (Group.OPTIONS, "--max-num-seqs", ("", "", "4"))
    ]
    assert comparison.warnings[0] == "A: REHEARSAL, NOT A RESULT"
    recorded = {result.scenario: result.performance for result in read_capsule(capsules[0]).results}
    for scenario in ("Offline", "Server"):
        figures = recorded[scenario].figures
        rate = row(comparison, scenario, "tokens per second")
        assert rate.cells[0].figure and rate.cells[0].figure.value == figures["tokens_per_second"].value
        assert rate.cells[0].figure.source == rate.cells[1].figure.source
        assert rate.cells[1].shift and rate.cells[1].shift.verdict is Verdict.SAME
    interval = row(comparison, "Server", "tokens per second").cells[0].interval
    assert interval and interval == recorded["Server"].figures["tokens_per_second"].interval
    assert interval == row(comparison, "Server", "tokens per second").cells[1].interval  # of the run, computed again
    p99 = row(comparison, "Server", "ttft p99").cells
    assert p99[0].interval is None and p99[2].shift and p99[2].shift.verdict is Verdict.UNKNOWN
    assert any(line.startswith("A: tiny-llama on") and "a.yaml" in line for line in as_text(comparison))
    median = row(comparison, "Server", "ttft p50").cells
    assert median[1].shift.verdict is Verdict.SAME and median[2].shift.verdict is Verdict.REAL
    live = row(compare_paths(two), "Server", "ttft p50").cells[1].shift
    assert median[2].shift == live  # a capsule and the folder that it was made of cannot disagree


def test_a_file_that_is_no_capsule_is_refused(two, tmp_path):
    (tmp_path / "rerun.yaml").write_text("schema: 2\nround: v6.1\n")
    with pytest.raises(UsageError, match="is not a capsule"):
        compare_paths([tmp_path / "rerun.yaml", two[0]])


def test_every_figure_of_the_object_is_in_loadgens_log(two):
    made = as_object(compare_paths(two))
    checked = 0
    for result in made["results"]:
        for figure in result["figures"]:
            for root, cell in zip(two, figure["values"], strict=True):
                if cell is None or not cell["file"].endswith(DETAIL_LOG):
                    continue
                if figure["unit"] == "tokens/sample":  # computed of several
                    continue
                logged = [read_detail_log(root / cell["file"]).number(key) for key in cell["field"].split(", ")]
                assert any(cell["value"] == pytest.approx(value / scale) for value in logged for scale in (1, 1e6))
                checked += 1
    assert checked >= 24


def test_the_page_has_the_same_figures_and_runs_nothing(two, tmp_path):
    done = report_comparison(",".join(map(str, two)), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in page and not re.search(r"url\(|@import| (src|href)=", page) and len(page) < 100_000
    assert "--max-num-seqs" in page and "worse: real" in page and "REHEARSAL" in page
    comparison = done["comparison"]
    assert isinstance(comparison, dict)
    values = [float(text) for text in re.findall(r'<data value="([^"]+)"', page)]
    assert values == [
        cell["value"]
        for result in comparison["results"]
        for figure in result["figures"]
        for cell in figure["values"]
        if cell
    ]


def test_published_results_have_no_uncertainty_but_that_of_their_percentiles(neural_magic):
    comparison = compare_paths([neural_magic / "results" / SYSTEMS.format(name) for name in ("FP8", "GPTQ")])
    assert [difference.values for difference in comparison.differences if difference.name == "weight data types"] == [
        ("fp8", "int4")
    ]
    assert comparison.warnings == (
        "Server: LoadGen asked for 5 and 4 samples/s. The throughput follows that, and the "
        "latencies are those of different loads.",
    )
    rate, p99 = (row(comparison, "Server", name).cells for name in ("tokens per second", "tpot p99"))
    assert rate[1].shift and rate[1].shift.verdict is Verdict.UNKNOWN and rate[0].interval is None
    assert p99[1].shift and p99[1].shift.verdict is Verdict.LIKELY and "worse: likely" in as_page(comparison)
    assert any("~" in line for line in as_text(comparison) if line.startswith("tpot p99"))


def test_a_tree_a_submitter_a_system_and_a_model_can_be_opened(neural_magic, real_runs):
    whole = open_results(neural_magic.parents[1])
    assert [len(submission.results) for submission in (*whole, *open_results(neural_magic))] == [10, 10]
    system = neural_magic / "results" / SYSTEMS.format("GPTQ")
    (part,) = open_results(system)
    assert {result.system for result in part.results} == {system.name} and len(part.results) < 10
    (runs,) = open_results(real_runs)
    assert {result.scenario for result in runs.results} == {"Offline", "Server"}
    model = next(real_runs.glob("runs/*/*"))
    assert open_results(model) == open_results(model.parent) == (runs,)


def test_what_cannot_be_compared_is_refused_with_the_reason(real_runs, neural_magic, tmp_path):
    with pytest.raises(UsageError, match="one result alone"):
        compare_paths([real_runs])
    with pytest.raises(UsageError, match="nothing to compare"):
        compare_paths([real_runs, neural_magic / "results" / SYSTEMS.format("FP8")])
    with pytest.raises(UsageError, match="too many to read"):
        compare_paths([neural_magic, neural_magic])
    with pytest.raises(SubmissionError, match="holds no results"):
        compare_paths([tmp_path, real_runs])
    with pytest.raises(UsageError, match="does not exist"):
        compare_paths([tmp_path / "missing", real_runs])


def test_what_one_result_does_not_state_is_no_difference():
    ours = {(Group.OPTIONS, "--a"): "1", (Group.MEASURED, "dataset"): "x", (Group.SYSTEM, "cooling"): "air"}
    bare = {(Group.OPTIONS, "command"): "vllm", (Group.MEASURED, "round"): "v6.1", (Group.SYSTEM, "cooling"): "water"}
    rows = compare_settings({"Offline": [ours, bare, {}]})
    assert [(row.name, row.values) for row in rows if row.differs] == [
        ("--a", ("1", "", "not stated")),
        ("command", ("", "vllm", "not stated")),
        ("cooling", ("air", "water", "not stated")),
    ]
    assert not any(row.equal or row.stated for row in rows)


def test_a_scenario_has_those_results_alone_that_have_it(neural_magic, two):
    consumer = neural_magic / "results" / "GO_2xRTX4090-reference-cpu-pytorch-v2.2.1-default_config"
    comparison = compare_paths([neural_magic / "results" / SYSTEMS.format("FP8"), consumer])
    assert [side.name for side in comparison.sides] == ["A", "B", "C", "D"]
    having = {(block.benchmark, block.scenario): [side.name for side in block.sides] for block in comparison.blocks}
    assert having["llama2-70b-99.9", "Offline"] == ["C", "D"]
    assert all(len(sides) > 1 for sides in having.values())
    assert all(len(row.cells) == len(block.sides) for block in comparison.blocks for row in block.rows)
    assert [difference.values for difference in comparison.differences if difference.name == "weight data types"]
    assert any("D against C" in line for line in as_text(comparison))


def changed(results, folder, change):
    """Copy results into a folder, with other records of their runs."""
    copy = Path(shutil.copytree(results, folder / "test"))
    for path in copy.glob("runs/*/*/*/*/run.json"):
        write_record(path, change(read_record(path, RunRecord)))
    return copy


def stating(options):
    """Change a run to that of a server of somebody else's that states these options."""

    def change(run):
        server = replace(run.settings.server, owned=False, argv=[], env={}, options=options)
        return replace(run, settings=replace(run.settings, server=server))

    return change


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("kind", [{"at_once": 10**6}, {"longest_connect_s": 1.2}])
def test_no_difference_of_a_doubtful_run_is_called_real(two, tmp_path, side, kind):
    assert row(compare_paths(two), "Server", "ttft p50").cells[1].shift.verdict is Verdict.REAL

    def doubted(run):
        return replace(run, client=replace(run.client, **kind))

    sides = list(two)
    place = "AB".index(side)
    sides[place] = changed(two[place], tmp_path, doubted)
    comparison = compare_paths(sides)
    shift = row(comparison, "Server", "ttft p50").cells[1].shift
    assert shift.verdict is Verdict.DOUBTFUL and shift.why.startswith("DOUBTFUL: ")
    text = "\n".join(as_text(comparison))
    assert "worse: doubtful" in text and "worse: real" not in text
    assert f"WARNING {side}: Server is DOUBTFUL: " in text and "worse: doubtful" in as_page(comparison)


@pytest.mark.parametrize("name", ["max-num-seqs", "max-num-batched-tokens", "enforce-eager"])
def test_options_that_servers_of_others_state_are_settings_that_differ(two, tmp_path, name):
    options = {"max-num-seqs": 16, "model": "/srv/private/model"}
    sides = [changed(two[0], tmp_path / str(value), stating({**options, name: value})) for value in (64, 8)]
    comparison = compare_paths(sides)
    assert [(setting.name, setting.values) for setting in comparison.differences] == [(f"--{name}", ("64", "8"))]
    assert "/srv/private" not in as_page(comparison)
    assert not any("VLLM_SERVER_DEV_MODE" in text for text in comparison.warnings)


@pytest.mark.parametrize(
    "options", [{"block-size": 16}, {}, {"enable-prefix-caching": False, "gpu-memory-utilization": 0.9}]
)
def test_where_servers_of_others_state_no_options_their_switch_is_named(two, tmp_path, options):
    both = [changed(two[0], tmp_path / name, stating(options)) for name in "ab"]
    (warning,) = [text for text in compare_paths([two[0], both[0]]).warnings if "VLLM_SERVER_DEV_MODE=1" in text]
    assert warning.startswith("The options of the servers of B are not known.")
    assert any(text.startswith("The options of the servers of A, B are not") for text in compare_paths(both).warnings)
