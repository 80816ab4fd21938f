"""The three ways into CM: a registered checkout, `cm pull repo`, and the wheel."""

import errno
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest

from cm4vllm.common.errors import NotWritable

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


# --- the modules that a start loads: a cache hit ends before pathlib would be imported


#: Modules that take a millisecond or more to load, or that start something.
HEAVY = set(
    (
        "pathlib hashlib dataclasses subprocess shutil tempfile asyncio "
        "cm4vllm.engine.run.shell_script cm4vllm.engine.run.hooks "
        "cm4vllm.engine.run.shell_environment cm4vllm.common.programs.processes"
    ).split()
)


def loaded(home, *words):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cmind.cli", *words],
        cwd=home.work,
        env=home.env,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_a_hit_of_the_cache_loads_nothing_heavy(home):
    home.script("one", {"cache": True, "new_env_keys": ["CM_ONE"]}, run="echo CM_ONE=1 > tmp-run-env.out\n")
    first = loaded(home, "run", "script", "--tags=one")
    assert "cm4vllm.engine.run.shell_script" in first
    hit = loaded(home, "run", "script", "--tags=one") - loaded(home, "version")
    assert "cm4vllm.engine.cache.reuse" in hit
    assert not hit & HEAVY


def test_a_script_without_a_shell_file_loads_nothing_to_run_one(home):
    home.script("one", {"env": {"CM_ONE": "1"}})
    loaded(home, "version")  # cmind indexes the home
    assert not loaded(home, "run", "script", "--tags=one") & {
        "subprocess",
        "ctypes",
        "cm4vllm.common.programs.processes",
    }


# --- a run and its results do not depend on whether what it prints can be written; its exit code says that it was not


RUN = ["run", "script", "--tags=get,thing"]


@pytest.fixture
def cm_to(home):
    home.script("get,thing", {"cache": True}, run="echo printed by the script\n")
    home.cli("find", "repo", "local")  # cmind itself reports at its first start that it makes an index

    def call(words, redirection):
        command = f'exec "$0" -m cmind.cli "$@" {redirection}'
        return subprocess.run(
            ["sh", "-c", command, sys.executable, *words],
            capture_output=True,
            text=True,
            check=False,
            env=home.env,
            cwd=home.work,
        )

    return call


@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-", "2>&-", "> /dev/full 2>&1", ">&- 2>&-"])
def test_a_run_whose_output_cannot_be_written_ends_well_but_for_its_exit_code(cm_to, home, redirection):
    done = cm_to(RUN, redirection)
    assert done.returncode == NotWritable.exit_code
    assert "bug" not in done.stderr and "Traceback" not in done.stderr
    assert len(home.entries()) == 1
    if "2>" not in redirection:
        assert "what the command printed could not be written" in done.stderr and "standard output" in done.stderr


@pytest.mark.parametrize(
    "words", [[*RUN, "--plan"], [*RUN, "-j"], ["show", "cache"], ["doctor", "script"], [*RUN, "-h"]]
)
@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-"])
def test_no_action_calls_it_a_bug(cm_to, words, redirection):
    done = cm_to(words, redirection)
    assert done.returncode
    assert "bug" not in done.stderr and "Traceback" not in done.stderr and "disk that is mounted" not in done.stderr


def test_a_reader_that_has_gone_is_no_failure(cm_to):
    assert cm_to(RUN, "| true").returncode == 0


LONG = "def preprocess(i):\n    print(('x' * 100 + chr(10)) * 3000)\n    return {'return': 0}\n"


@pytest.fixture
def long_run(home):
    """Return a function that starts a run of much output on the standard output that it is given."""
    home.script("get,long", customize=LONG)
    home.cli("find", "repo", "local")

    def start(stdout):
        words = [sys.executable, "-m", "cmind.cli", "run", "script", "--tags=get,long"]
        return subprocess.Popen(words, stdout=stdout, stderr=subprocess.PIPE, text=True, env=home.env, cwd=home.work)

    return start


def test_a_pipe_that_does_not_wait_for_its_reader_loses_nothing(long_run):
    read, write = os.pipe()
    os.set_blocking(write, False)
    with long_run(write) as process:
        os.close(write)
        time.sleep(2)  # the pipe is full by now
        with os.fdopen(read, encoding="utf-8") as pipe:
            printed = pipe.read()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, "")
    assert printed.splitlines().count("x" * 100) == 3000


def test_a_connection_that_its_reader_resets_is_a_reader_that_has_gone(long_run):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as writer:
        reader, _ = server.accept()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reader.close()
        with long_run(writer) as process:
            errors = process.stderr.read()
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_is_reported_and_is_no_bug(number, tmp_path):
    """Errors of a failing disk or of its server cannot be had of a disk that works."""
    code = (
        "import os, sys\n"
        "from cm4vllm.common.secrets.redaction import Vault\n"
        "from cm4vllm.common.programs.standard_streams import lost_output\n"
        "class Failing:\n"
        "    def __getattr__(self, name): return getattr(sys.__stdout__, name)\n"
        f"    def write(self, text): raise OSError({number}, os.strerror({number}))\n"
        "sys.stdout = Failing()\n"
        "with Vault().guarded_output(): print('a line')\n"
        "sys.stderr.write(lost_output())\n"
    )
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], stdout=out, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.stderr == f"<stdout>: {os.strerror(number)}"


def test_a_file_that_a_run_writes_does_not_get_what_it_prints(cm_to, home, tmp_path):
    done = cm_to([*RUN, f"--save_to_json={tmp_path / 'result.json'}"], ">&- 2>&- <&-")
    assert done.returncode == NotWritable.exit_code
    assert json.loads(Path(tmp_path / "result.json").read_text())
