"""The official checker in an environment of its own, and bundles of made-up points that it accepts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_points import write_points

from cm4vllm.common.records import read_record
from cm4vllm.endpoints.bundle import CheckerInstallation


@pytest.fixture(scope="session")
def checker(tmp_path_factory):
    """The official checker, from the CM home that `make setup` prepared; installed there if need be."""
    if not os.environ.get("CM_REPOS"):
        pytest.skip("CM_REPOS names no CM home: run by `make test`")
    done = subprocess.run(
        [
            Path(sys.executable).with_name("cm"),
            "run",
            "script",
            "--tags=get,mlperf,endpoints,_checker",
            "--quiet",
            "--out=json",
        ],
        cwd=tmp_path_factory.mktemp("cm"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout[done.stdout.index("{") :])["new_env"]["CM_MLPERF_ENDPOINTS_CHECKER"]
    return read_record(Path(record), CheckerInstallation)


@pytest.fixture
def points(tmp_path):
    """The run folders of seven points of llama3_1-8b that the rules accept."""
    return write_points(tmp_path / "points")
