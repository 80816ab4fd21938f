"""Logs of compliance tests: generated ones, and the official scripts that decide on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from compliance_logs import OFFICIAL


@pytest.fixture
def write_log(tmp_path: Path) -> Callable[[list[dict[str, object]]], Path]:
    """Write an accuracy log into a folder of its own and return its path."""

    def write(entries: list[dict[str, object]]) -> Path:
        path = tmp_path / "logs" / "mlperf_log_accuracy.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(entries))
        return path

    return write


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return the official verification script of a test at one of the commits."""
    git = os.environ.get("INFERENCE_GIT")
    if not git:
        pytest.skip("INFERENCE_GIT does not name a git directory of mlcommons/inference")

    def script(commit: str, test: str) -> Path:
        name, folder = OFFICIAL[commit]
        path = tmp_path_factory.mktemp("official") / f"{test.lower()}_{commit.replace('.', '_')}.py"
        file = f"{name}:{folder}/{test}/run_verification.py"
        path.write_bytes(
            subprocess.run(["git", f"--git-dir={git}", "show", file], check=True, capture_output=True).stdout
        )
        return path

    return script
