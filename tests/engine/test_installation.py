"""The three ways into CM: a registered checkout, `cm pull repo`, and the wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cm(tmp_path):
    def call(*words, **env):
        base = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CM_REPOS")}
        return subprocess.run(
            [sys.executable, "-m", "cmind.cli", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**base, "CM_REPOS": str(tmp_path / "CM"), **env},
            timeout=120,
            check=False,
        )

    return call


def test_add_repo(cm):
    assert cm("add", "repo", f"--path={ROOT}").returncode == 0
    done = cm("run", "script", "--tags=get,python3")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_pull_repo_from_a_git_folder(cm, tmp_path, scheme):
    clone = tmp_path / "cm4vllm"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    assert cm("pull", "repo", f"--url={scheme}{clone}").returncode == 0
    # A path is registered as it is, a URL is cloned into the home.
    clones = [path for path in (tmp_path / "CM" / "repos").iterdir() if path.name != "local"]
    assert len(clones) == (1 if scheme else 0)
    done = cm("run", "script", "--tags=get,python3", "-v")
    assert done.returncode == 0, done.stderr


def test_wheel_registers_itself(cm, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)],
        check=True,
        capture_output=True,
    )
    site = tmp_path / "site"
    with zipfile.ZipFile(next((tmp_path / "dist").glob("*.whl"))) as wheel:
        wheel.extractall(site)
    assert (site / "cm4vllm" / "cmr.yaml").is_file()
    done = cm("run", "script", "--tags=get,python3", PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    listing = cm("find", "script", "--tags=get,python3", PYTHONPATH=str(site))
    assert str(site) in listing.stdout
    lacking = cm("run", "script", "--tags=get,generic-python-lib,_requirements", "--help", PYTHONPATH=str(site))
    assert str(site) in lacking.stdout
