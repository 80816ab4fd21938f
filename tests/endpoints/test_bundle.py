"""Bundles, by the official builder and checker."""

import json
import random
from pathlib import Path

import pytest
from made_points import BENCHMARK, change_yaml, renamed

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import write_text
from cm4vllm.common.programs.processes import run
from cm4vllm.endpoints.bundle import build_bundle, official_report
from cm4vllm.results.endpoints.curves import read_curves
from cm4vllm.rules import regions
from cm4vllm.submission.privacy import private_words

_REGIONS = """
import json, sys
from submission_checker.models.regions import compute_regions
for c_min, c_max, stated in json.loads(sys.argv[1]):
    found = compute_regions(c_max, c_min, c_min_overridden=stated)
    parts = (found.ultra_low_concurrency, found.low_concurrency, found.med_concurrency, found.high_concurrency)
    print(*[f"{part.start}-{part.end}" for part in parts])
"""


def test_regions_are_those_of_the_official_checker(checker):
    numbers = random.Random(7)
    curves = [(numbers.randint(1, 32), numbers.randint(33, 20_000), numbers.random() < 0.5) for _ in range(200)]
    done = run([checker.python, "-c", _REGIONS, json.dumps(curves)])
    ours = []
    for c_min, c_max, stated in curves:
        own = regions(c_min=c_min, c_max=c_max, c_min_stated=stated)
        parts = (own.ultra_low, own.low, own.medium, own.high)
        ours.append(" ".join(f"{part.start}-{part.end}" for part in parts))
    assert ours == done.output.splitlines()


#: The warnings of the official checker about a rehearsal: it is short, on a name without thresholds.
_WARNINGS = {"point-duration", "steady-state-basis", "power-estimated", "maximal-engagement", "accuracy-gate"}


@pytest.fixture
def build(checker, tmp_path):
    """A function that builds the bundle of run folders."""
    write_text(tmp_path / "src" / "vllm" / "README.md", "vllm serve\n")
    write_text(tmp_path / "docs" / "README.md", "software\n")

    def build(points, **given):
        return build_bundle(
            checker,
            {folder.name: folder for folder in points.values()},
            tmp_path / "bundle",
            division="standardized",
            availability="available",
            source=tmp_path / "src",
            documentation=tmp_path / "docs",
            power=tmp_path / "power.json",
            **given,
        )

    return build


def program(checker, name):
    """The path of a program in the checker's environment."""
    return Path(checker.python).with_name(name)


def test_a_curve_that_keeps_the_rules_has_no_error_and_no_warning(checker, build, points, tmp_path):
    report = official_report(checker, build(points), tmp_path / "report.json")
    faults = [f"{finding.rule}: {finding.message}" for finding in report.results if finding.severity != "info"]
    assert faults == []


def test_the_power_of_each_point_is_that_of_the_official_checker(build, points, tmp_path):
    points = {concurrency: folder.rename(folder.with_name(f"p{concurrency}")) for concurrency, folder in points.items()}
    build(points)
    (tmp_path / "power.json").rename(points[8].parent / "power.json")
    (curve,), _ = read_curves(points[8].parent)
    # Two processors and eight accelerators, with the rules' part for the rest of an air-cooled node.
    kilowatts = (2 * 360 + 8 * 1000) * 1.5 / 1000
    for point in curve.points:
        assert point.figures.value("tps_per_kw") == pytest.approx(
            point.figures.value("system_tps") / kilowatts, rel=1e-3
        )


def test_a_rehearsal_has_the_error_of_its_name_alone(checker, build, stand_in_points, tmp_path):
    report = official_report(checker, build(stand_in_points), tmp_path / "report.json")
    assert set(report.counts("error")) == {"model-name-valid"}
    assert set(report.counts("warning")) <= _WARNINGS


def test_a_rehearsal_under_the_name_of_the_benchmark_fails_in_accuracy_alone(checker, build, stand_in_points, tmp_path):
    bundle = renamed(build(stand_in_points), tmp_path / "renamed", BENCHMARK.name)
    report = official_report(checker, bundle, tmp_path / "report.json")
    assert set(report.counts("error")) == {"accuracy-gate", "accuracy-sample-count"}


def test_the_official_program_takes_each_run_folder(checker, stand_in_points):
    for folder in stand_in_points.values():
        done = run([program(checker, "endpoints-submission-cli"), "runs", "create", "--dry-run", "--path", folder])
        assert done.ok, done.tail(5)
    (folder / "point.yaml").unlink()
    assert not run([program(checker, "endpoints-submission-cli"), "runs", "create", "--dry-run", "--path", folder]).ok


def test_the_official_viewer_has_no_warning(checker, build, stand_in_points, tmp_path):
    bundle = build(stand_in_points)

    def view():
        return run([program(checker, "mlperf-viz"), bundle.parent, "--strict", "--export", tmp_path / "view.json"])

    done = view()
    assert done.ok, done.tail(5)
    next(bundle.rglob("result_summary.json")).unlink()
    assert not view().ok


def test_what_the_builder_refuses_leaves_no_bundle(build, points, tmp_path):
    (points[8] / "config.yaml").unlink()
    with pytest.raises(SubmissionError, match="the official builder refuses") as raised:
        build(points)
    assert "config.yaml" in raised.value.cause
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("http://gpu-7.lab.example:8000", "server"),
        ("http://203.0.113.7:8000", "server"),
        ("/home/kkowalska/results", "home folder"),
        ("sk-quite-secret-1234", "secret"),
    ],
)
def test_a_private_word_in_a_file_leaves_no_bundle(build, points, tmp_path, text, kind):
    words = private_words(
        tmp_path,
        {"HOME": "/home/kkowalska", "SERVER_API_KEY": "sk-quite-secret-1234"},
        servers=("gpu-7.lab.example", "203.0.113.7"),
    )
    change_yaml(points[54] / "config.yaml", lambda content: content.update(note=text))
    with pytest.raises(SubmissionError, match="config.yaml, line .*" + kind) as raised:
        build(points, private=words)
    assert "sk-quite" not in f"{raised.value.what}{raised.value.cause}"
    assert not (tmp_path / "bundle").exists()
