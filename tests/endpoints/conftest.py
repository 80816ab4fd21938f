"""The official checker and the reference client, and bundles of made-up points that the checker accepts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "loadgen"))  # the test peer fake_vllm

from made_points import STAND_IN, write_points

from cm4vllm.common.records import read_record
from cm4vllm.endpoints.bundle import CheckerInstallation


def installed(folder, part, *given):
    """Return the path of the record of a part of get,mlperf,endpoints, installed where it is not."""
    if not os.environ.get("CM_REPOS"):
        pytest.skip("CM_REPOS names no CM home: run by `make test`")
    words = ["run", "script", f"--tags=get,mlperf,endpoints,_{part}", *given, "--quiet", "--out=json"]
    cm = Path(sys.executable).with_name("cm")
    done = subprocess.run([cm, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(json.loads(done.stdout[done.stdout.index("{") :])["new_env"][f"CM_MLPERF_ENDPOINTS_{part.upper()}"])


@pytest.fixture(scope="session")
def checker(tmp_path_factory):
    """The official checker, from the CM home that `make setup` prepared; installed there if need be."""
    return read_record(installed(tmp_path_factory.mktemp("cm"), "checker"), CheckerInstallation)


@pytest.fixture(scope="session")
def endpoints_git():
    """The git directory of mlcommons/endpoints that ENDPOINTS_GIT names."""
    if not (source := os.environ.get("ENDPOINTS_GIT")):
        pytest.skip("ENDPOINTS_GIT names no git directory of mlcommons/endpoints")
    return Path(source)


@pytest.fixture(scope="session")
def reference_client(tmp_path_factory, endpoints_git):
    """The record of the reference client at the newest commit that was tried."""
    return installed(tmp_path_factory.mktemp("cm"), "client", f"--endpoints_src={endpoints_git}")


@pytest.fixture(scope="session")
def written_points(tmp_path_factory):
    """The folder with the run folders of `points`, which no test changes."""
    folder = tmp_path_factory.mktemp("written")
    return folder, write_points(folder)


@pytest.fixture
def points(tmp_path, written_points):
    """The run folders of seven points of llama3_1-8b that the rules accept."""
    folder, names = written_points
    shutil.copytree(folder, tmp_path / "points")
    return {concurrency: tmp_path / "points" / path.name for concurrency, path in names.items()}


@pytest.fixture
def stand_in_points(tmp_path):
    """The run folders of seven points of the stand-in, as a rehearsal leaves them."""
    return write_points(tmp_path / "stand-in", STAND_IN)
