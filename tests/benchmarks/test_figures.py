"""The module that all benchmarks share: rounds, ratios, limits, the table and the JSON file."""

import json
import runpy
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def figures():
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "figures.py"))


def test_every_round_measures_every_case_and_begins_with_another(figures):
    called = []
    cases = {name: lambda name=name: called.append(name) or len(called) for name in "abc"}
    measured = figures["interleaved"](cases, 3)
    assert called == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert measured == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_a_ratio_is_taken_within_a_round(figures):
    assert figures["ratios"]([10.0, 30.0], [5.0, 10.0]) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("limits", "limit", "holds"),
    [
        ({}, None, None),
        ({"at_least": 25}, ">= 25", True),
        ({"at_least": 31}, ">= 31", False),
        ({"at_most": 30}, "<= 30", True),
        ({"at_most": 29.5}, "<= 29.5", False),
    ],
)
def test_the_limit_is_held_by_the_median(figures, limits, limit, holds):
    made = figures["figure"]("x", [10.0, 30.0, 90.0], "s", **limits)
    assert (made.value, made.low, made.high, made.limit, made.holds) == (30.0, 10.0, 90.0, limit, holds)


def test_the_report_is_a_table_and_a_file_and_an_exit_code(figures, tmp_path, capsys):
    good = figures["figure"]("ours / theirs", [60.0], "x", at_least=50)
    bad = figures["figure"]("time", [40.0], "s", at_most=30)
    assert figures["report"]([good]) == 0
    assert figures["report"]([good, bad], tmp_path / "figures.json") == 1
    shown = capsys.readouterr().out
    assert "DOES NOT HOLD" in shown.splitlines()[-2]
    assert json.loads((tmp_path / "figures.json").read_text())["time"] == {
        "value": 40.0,
        "low": 40.0,
        "high": 40.0,
        "unit": "s",
        "limit": "<= 30",
        "holds": False,
    }
