"""Bundles, by the official builder and checker."""

import json
import random

import pytest

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import write_text
from cm4vllm.common.processes import run
from cm4vllm.endpoints.bundle import build_bundle, official_report
from cm4vllm.rules import regions

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
        found = regions(c_min=c_min, c_max=c_max, c_min_stated=stated)
        parts = (found.ultra_low, found.low, found.medium, found.high)
        ours.append(" ".join(f"{part.start}-{part.end}" for part in parts))
    assert ours == done.output.splitlines()


@pytest.fixture
def built(checker, points, tmp_path):
    write_text(tmp_path / "src" / "vllm" / "README.md", "vllm serve\n")
    write_text(tmp_path / "docs" / "README.md", "software\n")

    def build():
        return build_bundle(
            checker,
            {folder.name: folder for folder in points.values()},
            tmp_path / "bundle",
            division="standardized",
            availability="available",
            source=tmp_path / "src",
            documentation=tmp_path / "docs",
        )

    return build


def test_a_curve_that_keeps_the_rules_has_no_error_and_no_warning(checker, built, tmp_path):
    report = official_report(checker, built(), tmp_path / "report.json")
    found = [f"{one.rule}: {one.message}" for one in report.findings if one.severity != "info"]
    assert found == []


def test_what_the_builder_refuses_leaves_no_bundle(built, points, tmp_path):
    (points[8] / "config.yaml").unlink()
    with pytest.raises(SubmissionError, match="the official builder refuses") as raised:
        built()
    assert "config.yaml" in raised.value.cause
    assert not (tmp_path / "bundle").exists()
