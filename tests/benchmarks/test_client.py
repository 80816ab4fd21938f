"""The benchmark of the client runs, and writes the figures that its table shows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from client import _added
from clients.programs import Stamps
from clients.task import Result

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "client.py"


def test_a_quick_run_writes_its_figures(tmp_path):
    words = ["--quick", "--only=alone,latency,vllm", f"--json={tmp_path / 'f'}"]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr  # 1: a limit does not hold, which so short a run cannot tell
    figures = json.loads((tmp_path / "f").read_text())
    assert figures["queries/s without LoadGen: ours"]["value"] > 0
    assert figures["error of TPOT p50: ours"]["limit"] == "<= 2"
    assert "the real vLLM: left out: not installed" in done.stderr
    assert set(figures["error of TPOT p50: ours"]) == {"value", "low", "high", "unit", "limit", "holds"}


@pytest.mark.parametrize(
    ("words", "said"),
    [("--only=alone,nothing", "no part nothing; there are offline, alone,"), ("--cores=0,0", "two different cores")],
)
def test_what_cannot_be_measured_is_refused(words, said):
    done = subprocess.run([sys.executable, str(SCRIPT), words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr


def test_what_the_client_adds_is_what_loadgen_measured_less_what_the_server_did():
    result = Result(queries=4, tokens=8, wall_s=1, ttft_p50=21.5, ttft_p99=30, tpot_p50=20.4)
    added = _added(result, Stamps([20.0, 20.0, 21.0, 22.0], [20.0, 20.0, 20.0, 21.0]))
    assert (added.p50, added.p99) == (0.5, 8.0)
    assert added.tpot == pytest.approx(2.0)
