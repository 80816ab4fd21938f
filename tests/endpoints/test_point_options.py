"""Points whose server has further options: it is started again where they change, and only there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.campaign.endpoints.schedule import schedule
from cm4vllm.campaign.endpoints.settings import EndpointsJob, EndpointsSettings, point_options
from cm4vllm.common.errors import UsageError

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
    inputs = {step.name: step.inputs.get("CM_VLLM_SERVER_EXTRA_ARGS") for step in steps if "server" in step.name}
    assert list(inputs.values()) == [None, "--x --max-num-seqs=8", "--x", "--x --max-num-seqs=8"]


def test_a_job_measures_its_points_on_the_servers_that_they_ask_for(tmp_path):
    words = [
        "SECONDS=0.1",
        f"CM_MLPERF_ENDPOINTS_POINTS_GIVEN={POINTS}",
        "CM_MLPERF_ENDPOINTS_POINT_ARGS=40: --max-num-seqs=8",
    ]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("small_curve.py"), tmp_path, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    points = tmp_path / "results/endpoints/test/points"
    argvs = [json.loads((points / f"point-{n}/point.json").read_text())["server"]["argv"] for n in (1, 6, 7)]
    assert [argv.count("--max-num-seqs=8") for argv in argvs] == [0, 0, 1]
    assert done.stdout.count("starting vLLM with small: done") == 2
