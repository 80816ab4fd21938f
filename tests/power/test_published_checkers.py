"""The official power checker of each round on published sessions: whole ones pass all of its checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.common.git.git_source import extract
from cm4vllm.rules import round_terms

#: The session in whose copy PTDaemon's log is missing, which the checker finds.
CUT = "v4.1-nvidia-h200-maxq-llama2-70b-99-offline"


def test_the_checker_of_the_round_passes_the_published_sessions(published_power: Path, tmp_path: Path) -> None:
    git = os.environ.get("INFERENCE_GIT")
    if not git:
        pytest.skip("INFERENCE_GIT does not name a git directory of mlcommons/inference")
    passed = {}
    for session in sorted(published_power.iterdir()):
        terms = round_terms(session.name.partition("-")[0])
        folder = tmp_path / terms.name
        if not folder.exists():
            folder.mkdir()
            extract(Path(git), terms.checkers[0].commit, ["tools/submission/power"], folder)
        words = [sys.executable, folder / "tools/submission/power/power_checker.py", session]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        passed[session.name] = [sum(mark in line for line in lines) for mark in ("[x] ", "[ ] ")]
    assert passed.pop(CUT) == [9, 2]
    assert set(map(tuple, passed.values())) == {(11, 0)}, passed
