"""The published figure of power of each kind of result: W, and mJ/query where results are compared by a latency."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.common.git.git_source import extract
from cm4vllm.results.figures import Figure
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.recorded_power import recorded_power
from cm4vllm.rules import round_terms


def figures(root: Path, name: str) -> tuple[Figure, Figure]:
    part = Reader(root).performance(root / name / "run_1", None)
    power = recorded_power(part) if part else None
    assert power is not None
    return power.mean, power.metric


def test_a_rate_has_watts_and_a_latency_has_energy(published_power: Path) -> None:
    """The figures are those that mlcommons/cm4mlperf-results has as Result_Power."""
    power, metric = figures(published_power, "v4.1-untether-r760-resnet50-offline")
    assert power == metric and power.unit == "W" and power.value == pytest.approx(1021.358974)
    power, metric = figures(published_power, "v4.1-untether-h13-resnet50-singlestream")
    assert (power.unit, power.value) == ("W", pytest.approx(231.1185))
    assert (metric.unit, metric.value) == ("mJ/query", pytest.approx(29.238987, abs=5e-7))
    assert metric.source.file == "v4.1-untether-h13-resnet50-singlestream/run_1/spl.txt"


OFFICIAL = """
import json, sys
from submission_checker.utils import get_power_metric
scenario, folder, result = sys.argv[1:]
print(json.dumps(get_power_metric(None, scenario, folder, True, float(result))))
"""


def test_the_figures_of_published_sessions_are_those_of_the_official_checker(
    published_power: Path, tmp_path: Path, inference_git: Path
) -> None:
    extract(inference_git, round_terms("v6.1").checkers[0].commit, ["tools/submission/submission_checker"], tmp_path)
    for session in sorted(published_power.iterdir()):
        part = Reader(published_power).performance(session / "run_1", None)
        power = recorded_power(part) if part else None
        assert part and part.metric and power and power.efficiency, session.name
        scenario = "SingleStream" if power.metric.unit == "mJ/query" else "Offline"
        done = subprocess.run(
            [sys.executable, "-c", OFFICIAL, scenario, session / "run_1", str(float(part.metric.value))],
            env={"PYTHONPATH": str(tmp_path / "tools/submission")},
            capture_output=True,
            text=True,
            check=True,
        )
        valid, metric, _, efficiency = json.loads(done.stdout.splitlines()[-1])
        assert valid
        assert (power.metric.value, power.efficiency.value) == pytest.approx((metric, efficiency), rel=1e-12), session


def test_a_run_without_an_analyzer_has_no_power(neural_magic: Path) -> None:
    folder = next(neural_magic.glob("results/*/*/*/performance/run_1"))
    part = Reader(neural_magic).performance(folder, None)
    assert part is not None and recorded_power(part) is None
