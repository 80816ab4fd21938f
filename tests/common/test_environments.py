"""The messages of failed installations: each names the cause."""

import subprocess
import sys

import pytest

from cm4vllm.common.environments import checked
from cm4vllm.common.errors import InstallError
from cm4vllm.common.processes import Completed

INDEX = "http://127.0.0.1:9"  # the discard port: no program listens there


def pip(*words):
    argv = [sys.executable, "-m", "pip", "install", "--isolated", "--no-cache-dir", "--dry-run", *words]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return Completed(tuple(argv), done.returncode, done.stdout)


def test_a_machine_without_a_network_is_named_as_the_cause():
    with pytest.raises(InstallError) as failed:
        checked(pip("--retries=1", f"--index-url={INDEX}", "cm4vllm-none==1"), "it cannot be installed", "--my_index")
    assert failed.value.what == "it cannot be installed"
    assert failed.value.cause == "pip has no connection to the package index: [Errno 111] Connection refused"
    assert (
        "where the machine has a network" in failed.value.remedy and "--my_index or `pip config`" in failed.value.remedy
    )


def test_a_constraint_of_the_user_does_not_hide_that_an_index_cannot_be_reached(tmp_path):
    constraint = tmp_path / "constraint.txt"
    constraint.write_text("cm4vllm-none<2\n")
    with pytest.raises(InstallError) as failed:
        checked(pip("--retries=1", f"--index-url={INDEX}", "-c", str(constraint), "cm4vllm-none==1"), "no")
    assert failed.value.cause == "pip has no connection to the package index: [Errno 111] Connection refused"


def test_a_release_that_an_index_does_not_have_is_no_failure_of_the_network(tmp_path):
    with pytest.raises(InstallError) as failed:
        checked(pip("--no-index", f"--find-links={tmp_path}", "cm4vllm-none==1"), "it cannot be installed")
    assert "No matching distribution found for cm4vllm-none==1" in failed.value.cause


@pytest.mark.parametrize(
    "said", ["error: externally-managed-environment\n\nThis environment is ...", "ERROR: [Errno 13] Permission denied"]
)
def test_another_users_python_is_answered_with_a_virtual_environment(said):
    with pytest.raises(InstallError) as failed:
        checked(Completed(("pip",), 1, said), "it cannot be installed")
    assert "use a virtual environment" in failed.value.remedy
    assert said.splitlines()[0] in failed.value.cause
