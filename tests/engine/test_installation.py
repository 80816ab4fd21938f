"""The three ways into CM: a registered checkout, `cm pull repo`, and the wheel."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cm(tmp_path):
    def call(*words, python=(sys.executable,), **env):
        base = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CM_REPOS")}
        return subprocess.run(
            [*python, "-m", "cmind.cli", *words],
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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a folder with the files that the wheel installs."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)],
        check=True,
        capture_output=True,
    )
    with zipfile.ZipFile(next((folder / "dist").glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def test_wheel_registers_itself(cm, site):
    assert (site / "cm4vllm" / "cmr.yaml").is_file()
    done = cm("run", "script", "--tags=get,python3", PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    listing = cm("find", "script", "--tags=get,python3", PYTHONPATH=str(site))
    assert str(site) in listing.stdout
    lacking = cm("run", "script", "--tags=get,generic-python-lib,_requirements", "--help", PYTHONPATH=str(site))
    assert str(site) in lacking.stdout


def test_a_copy_of_the_installed_package_runs_where_none_is_installed(cm, site, tmp_path):
    # `cm dockerfile script` puts such a copy into an image.
    copy = tmp_path / "repos" / "cm4vllm"
    shutil.copytree(site / "cm4vllm", copy)
    assert cm("add", "repo", f"--path={copy}").returncode == 0
    packages = sysconfig.get_path("purelib")
    for words in (["run", "cm4vllm:script", "--tags=detect,os"], ["show", "cache"]):
        # Without the module site, which would find this checkout by a file of the environment.
        done = cm(*words, python=[sys.executable, "-S"], PYTHONPATH=packages)
        assert done.returncode == 0, done.stderr
