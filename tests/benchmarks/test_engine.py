"""The benchmark of the engine runs, and writes the figures that its table shows."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "engine.py"


def test_a_quick_run_writes_its_figures(tmp_path):
    words = ["--quick", "--only=cached,unknown,search,first", f"--json={tmp_path / 'f'}"]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr  # 1: a limit does not hold, which so short a run cannot tell
    figures = json.loads((tmp_path / "f").read_text())
    # In one round a machine that stands still makes any start long.
    start = min(figures["cmind's own start, 300 scripts"]["value"], 6.5)
    assert figures["cached script hit"]["value"] > start * 0.5
    assert figures["cached script hit"]["limit"] == "<= 6.5"
    assert figures["cached script hit: memory"]["value"] > 0
    assert figures["first use, 10,000 scripts: ours / cmind's own indexing"]["limit"] == "<= 1.2"


def test_a_case_that_there_is_not_is_refused():
    done = subprocess.run([sys.executable, str(SCRIPT), "--only=nothing"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no part nothing" in done.stderr
