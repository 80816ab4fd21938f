"""A run and its results do not depend on whether what it prints can be written; its exit code says that it was not."""

import json
import subprocess
import sys
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


def test_a_file_that_a_run_writes_does_not_get_what_it_prints(cm, home, tmp_path):
    done = cm([*RUN, f"--save_to_json={tmp_path / 'result.json'}"], ">&- 2>&- <&-")
    assert done.returncode == NotWritable.exit_code
    assert json.loads(Path(tmp_path / "result.json").read_text())
