"""Fault injection: the moment of a fault, the process that is killed, and what is found afterwards."""

import json
import subprocess
import sys
import time

import pytest

from cm4vllm.campaign.ledger import State
from cm4vllm.campaign.live.status import STATUS_FILE
from cm4vllm.serving.supervisor import parent_of
from fault_injection.trial import MARK, Trial
from faults import REAL_FAULTS, REAL_JOB

RUN, STEP = "Offline/accuracy", "Offline accuracy"
SLEEPER = "import time; time.sleep(60)"


@pytest.fixture
def trial(tmp_path):
    made = Trial(0, tmp_path, REAL_JOB)
    made.out.mkdir(parents=True)
    made.run, made.share = RUN, 0.5
    return made


@pytest.fixture
def started(trial, monkeypatch):
    """Return a function that starts a process of the trial with these words in its command line."""
    monkeypatch.setenv(MARK, str(trial.folder))
    processes = []

    def start(words):
        processes.append(subprocess.Popen([sys.executable, "-c", SLEEPER, words]))
        while not trial.processes(words):
            time.sleep(0.01)
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_fault_waits_for_the_share_of_its_run(trial):
    """The share of a run without a known end is one of time."""
    assert not trial.in_run()
    rows = [
        (STEP, {}, False),
        (STEP, {"done": 49, "total": 100, "elapsed_s": 9.0}, False),
        ("Server accuracy", {"done": 50, "total": 100, "elapsed_s": 9.0}, False),
        (STEP, {"done": 50, "total": 100, "elapsed_s": 9.0}, True),
        (STEP, {"done": 50, "total": None, "elapsed_s": 4.9}, False),
        (STEP, {"done": 50, "total": None, "elapsed_s": 5.0}, True),
    ]
    for step, run, come in rows:
        steps = [{"name": step, "state": State.RUNNING}]
        (trial.out / STATUS_FILE).write_text(json.dumps({"steps": steps, "run": run or None}))
        assert trial.in_run() is come, (step, run)


def test_the_server_itself_is_killed_and_not_its_supervisor(trial, started):
    supervisor = started("-m cm4vllm.serving.supervisor results/test/server/supervisor.json")
    server = started("-m vllm.entrypoints.cli.main serve model")
    REAL_FAULTS["kill -9 of the server"].happen(trial)
    assert server.wait(30) == -9
    assert supervisor.poll() is None
    assert trial.hit == REAL_JOB.server
    assert trial.wrong == []


def test_an_engine_that_outlives_its_server_is_found(trial, started, monkeypatch):
    monkeypatch.setattr("faults.END_S", 0.2)
    started("VLLM::EngineCore")
    server = started("-m vllm.entrypoints.cli.main serve model")

    def parent_once_ended(pid):
        if pid == server.pid:
            server.wait(30)
        return parent_of(pid)

    monkeypatch.setattr("faults.parent_of", parent_once_ended)
    REAL_FAULTS["kill -9 of the server"].happen(trial)
    assert trial.wrong == ["1 processes of the killed server went on for 0 s"]


def test_a_process_that_never_comes_is_recorded_as_none(trial):
    REAL_FAULTS["kill -9 of LoadGen"].happen(trial)
    assert trial.hit == ""


def test_memory_that_is_left_is_found(trial, tmp_path):
    left = tmp_path / "psm_left"
    left.write_bytes(b"")
    trial.memory.add(left)
    trial.look()
    assert trial.wrong == [f"{left} is left of its shared memory"]
