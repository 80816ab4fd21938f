"""Tests side by side: those of a file share a process, and one that measures time has the machine for itself."""

import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import json, os, time
from pathlib import Path
import pytest

def note(name):
    begin = time.monotonic()
    time.sleep(0.3)
    Path(__file__).with_name(f"{name}.json").write_text(json.dumps([begin, time.monotonic(), os.getpid()]))

@pytest.mark.timing
def test_timed(): note("NAME-timed")

@pytest.mark.parametrize("number", range(4))
def test_other(number): note(f"NAME-{number}")

@pytest.mark.xdist_group("vllm-1")
def test_grouped(): note("NAME-grouped")
"""


def test_files_share_a_process_and_a_timed_test_runs_alone(tmp_path):
    pytest.importorskip("xdist")
    for name in ("conftest.py", "commands.py"):
        shutil.copy(Path(__file__).with_name(name), tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = timing: measures time\n")
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(MODULE.replace("NAME", name))
    words = [
        sys.executable,
        *"-m pytest -q -p no:cacheprovider -n 3 --dist loadfile --no-loadscope-reorder".split(),
        f"--basetemp={tmp_path / 'made'}",
        str(tmp_path),
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "18 passed" in done.stdout, done.stdout + done.stderr
    times = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("?-*.json")}
    kinds = ("timed", "grouped", *(rf"{file}-\d" for file in "abc"))
    groups = [[value for name, value in times.items() if re.search(f"{kind}$", name)] for kind in kinds]
    assert list(map(len, groups)) == [3, 3, 4, 4, 4]
    for group in groups:
        assert len({process for _, _, process in group}) == 1
    timed, grouped, *files = groups
    others = [*grouped, *itertools.chain(*files)]
    for begin, end, _ in timed:
        assert all(other_end <= begin or end <= other_begin for other_begin, other_end, _ in others)
    first = min(value for value in others if value[2] == grouped[0][2])
    assert first in grouped, "a file came before a group"
    beside = itertools.pairwise(sorted(others))
    assert any(begin < end for (_, end, _), (begin, _, _) in beside), "nothing ran side by side"
