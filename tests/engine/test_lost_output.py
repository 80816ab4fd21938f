"""A run and its results do not depend on whether what it prints can be written; its exit code says that it was not."""

import errno
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cm4vllm.common.errors import NotWritable

RUN = ["run", "script", "--tags=get,thing"]


@pytest.fixture
def cm(home):
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
def test_a_run_whose_output_cannot_be_written_ends_well_but_for_its_exit_code(cm, home, redirection):
    done = cm(RUN, redirection)
    assert done.returncode == NotWritable.exit_code
    assert "bug" not in done.stderr and "Traceback" not in done.stderr
    assert len(home.entries()) == 1
    if "2>" not in redirection:
        assert "what the command printed could not be written" in done.stderr and "standard output" in done.stderr


@pytest.mark.parametrize(
    "words", [[*RUN, "--plan"], [*RUN, "-j"], ["show", "cache"], ["doctor", "script"], [*RUN, "-h"]]
)
@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-"])
def test_no_action_calls_it_a_bug(cm, words, redirection):
    done = cm(words, redirection)
    assert done.returncode
    assert "bug" not in done.stderr and "Traceback" not in done.stderr and "disk that is mounted" not in done.stderr


def test_a_reader_that_has_gone_is_no_failure(cm):
    assert cm(RUN, "| true").returncode == 0


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


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOSPC, errno.ETIMEDOUT])
def test_a_disk_that_fails_is_reported_and_is_no_bug(number, tmp_path):
    """Errors of a failing disk or of its server cannot be had of a disk that works."""
    code = (
        "import os, sys\n"
        "from cm4vllm.common.secrets.redaction import Vault\n"
        "from cm4vllm.common.standard_streams import lost_output\n"
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


def test_a_file_that_a_run_writes_does_not_get_what_it_prints(cm, home, tmp_path):
    done = cm([*RUN, f"--save_to_json={tmp_path / 'result.json'}"], ">&- 2>&- <&-")
    assert done.returncode == NotWritable.exit_code
    assert json.loads(Path(tmp_path / "result.json").read_text())
