"""The benchmark of the page: a page of 400,000 queries is made within its limits of time and size."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "page.py"


def test_a_page_of_400_000_queries_is_small_and_made_in_time(tmp_path):
    words = ["--rounds=1", f"--json={tmp_path / 'figures.json'}"]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["page of 400,000 queries: processor time"]["limit"] == "<= 5"
    assert 20 < figures["page of 400,000 queries: size"]["value"] < 300
