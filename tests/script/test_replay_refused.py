"""A capsule of a stranger at the command line: nothing of it is asked, fetched or run before the user agreed."""

import socket

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.results.capsule import Capsule, CapsuleServer
from cm4vllm.submission.capsule.rerun_file import write_capsule

REPLAY = ("run", "script", "--tags=replay,mlperf", "--capsule=rerun.yaml")


@pytest.fixture
def host():
    """A host of a stranger: a socket that listens; a request to it could be accepted."""
    with socket.create_server(("127.0.0.2", 0)) as listening:
        listening.settimeout(0.2)
        yield listening


def asked(listening):
    try:
        listening.accept()[0].close()
    except TimeoutError:
        return False
    return True


def stranger(folder, *flags):
    write_capsule(
        folder / "rerun.yaml",
        Capsule(
            made_from="run records",
            round="v6.1",
            division="open",
            submitter="Stranger",
            system="box",
            benchmark="llama3.1-8b",
            rehearsal=True,
            program={},
            command=["cm", "run", "script", "--tags=run-mlperf,inference,_vllm", *flags],
            scripts=[],
            packages={},
            contents={},
            model={"name": "tiny-llama"},
            dataset={},
            server=CapsuleServer(),
            machine={},
            results=[],
        ),
    )


@pytest.mark.parametrize("way", [(), ("--quiet",), ("--plan",)])
def test_a_package_index_of_a_stranger_is_refused_with_the_line_to_type(cm, host, way):
    address = "http://{}:{}/simple/".format(*host.getsockname())
    stranger(cm.cwd, f"--vllm_index_url={address}")
    done = cm(*REPLAY, *way)
    done.refused_with(UsageError.exit_code, f"--vllm_index_url={address}: the only package index")
    assert "--accept=vllm_index_url" in done.output and "running:" not in done.output
    assert not asked(host)


def test_a_secret_of_the_environment_is_not_sent(cm, host, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret-4711")
    address = "http://{}:{}".format(*host.getsockname())
    stranger(cm.cwd, f"--api_server={address}/${{AWS_SECRET_ACCESS_KEY:?}}")
    for way in ((), ("--fill=AWS_SECRET_ACCESS_KEY", "--accept=api_server")):
        done = cm(*REPLAY, *way)
        done.refused_with(UsageError.exit_code, "AWS_SECRET_ACCESS_KEY is not filled into")
        assert "4711" not in done.output and not asked(host)


def test_the_plan_of_a_replay_is_that_of_its_job(cm):
    stranger(cm.cwd, "--scenario=Offline", "--extra_args=--middleware=evil.M")
    done = cm(*REPLAY, "--plan", "--accept=extra_args")
    assert done.code == 0, done.output
    assert "step Offline performance" in done.output and "Server performance" not in done.output
    cm(*REPLAY, "--plan").refused_with(UsageError.exit_code, "--accept=extra_args")


def test_a_capsule_that_is_compared_runs_nothing(cm, host):
    address = "http://{}:{}/simple/".format(*host.getsockname())
    stranger(cm.cwd, f"--vllm_index_url={address}", f"--api_server={address}")
    done = cm("run", "script", "--tags=verify,mlperf", "--capsule=rerun.yaml", "--other=rerun.yaml")
    assert done.code == 0, done.output
    assert not asked(host)
