"""Logs of compliance tests: generated ones, and the official scripts that decide on them."""

import json
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
def official(
    tmp_path_factory: pytest.TempPathFactory, official_file: Callable[[str, str], str]
) -> Callable[[str, str], Path]:
    """Return the official verification script of a test at one of the commits."""

    def script(commit: str, test: str) -> Path:
        name, folder = OFFICIAL[commit]
        path = tmp_path_factory.mktemp("official") / f"{test.lower()}_{commit.replace('.', '_')}.py"
        path.write_text(official_file(name, f"{folder}/{test}/run_verification.py"), encoding="utf-8")
        return path

    return script
