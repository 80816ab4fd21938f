"""The same command again: done steps are kept, a stopped run goes on, and a failed one is set aside."""

import json
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, nullcontext, suppress

import pytest

from cm4vllm.campaign.execution import recipes_of
from cm4vllm.campaign.ledger import ATTEMPTS, LEDGER_FILE, State
from cm4vllm.campaign.rehearsal.faults import FAULT_FILE
from cm4vllm.common.errors import EnvironmentBroken
from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.loadgen.process.kept_answers import file_of, kept_answers
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_accuracy_log
from cm4vllm.records.run import RUN_FILE
from cm4vllm.serving.ports import free_port
from small_job import PROFILE, RUNS, SERVER, SmallJob


def entries(job, state):
    lines = [json.loads(line) for line in (job.out / LEDGER_FILE).read_text().splitlines()]
    return [entry for entry in lines if entry["state"] == state]


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A file that makes servers slow as long as it is there: what is killed then is not over before."""
    file = tmp_path / "faults"
    file.write_text("slow")
    monkeypatch.setenv(FAULT_FILE, str(file))
    return file


def test_a_job_survives_the_end_of_its_server_and_its_own_and_makes_nothing_twice(tmp_path, slow):
    job = SmallJob(tmp_path)
    answers = file_of(job.folder / RUNS / "accuracy")
    process = job.start()
    job.wait_until(process, lambda: answers.exists() and len(kept_answers(answers)) >= 2)
    job.kill_server()
    slow.unlink()
    job.wait_until(process, lambda: job.is_measuring(process))
    process.kill()
    process.wait()

    # An accuracy run goes on with a new server.
    accuracy, logged = job.record("accuracy"), read_accuracy_log(job.folder / RUNS / "accuracy" / ACCURACY_LOG)
    shares = [piece["answers"] for piece in accuracy["pieces"]]
    assert len(shares) == 2 and sum(shares) == 64 and shares[0] >= 2
    assert (accuracy["client"]["kept"], accuracy["client"]["completed"]) == (shares[0], 64)
    assert sum(len(tokens) for _, tokens, _ in logged) == accuracy["client"]["completion_tokens"]
    assert not answers.exists()
    (failed,) = entries(job, "failed")
    assert failed["step"] == "Offline accuracy" and "the server ended" in failed["why"]
    assert (job.out / failed["left"] / "server.log").exists()

    # The command that was killed left a torn line; the next one keeps the accuracy run, and measures the other again.
    with (job.out / LEDGER_FILE).open("ab") as file:
        file.write(b'{"schema":1,"run"')
    process = job.start()
    job.wait_until(process, lambda: job.is_measuring(process))
    job.kill_server()
    assert process.wait(90) == 0, job.log.read_text()
    states = job.states()
    assert job.record("accuracy")["files"] == accuracy["files"]
    assert (states["Offline accuracy"].last.state, states["Offline accuracy"].attempts) == (State.KEPT, 2)
    assert (states["Offline performance"].last.state, states["Offline performance"].attempts) == (State.DONE, 3)
    assert "is INVALID, and the server is started again" in job.log.read_text()
    assert job.record("performance")["pieces"] == []
    assert (job.out / ATTEMPTS / "torn-line-of-ledger-1").read_bytes() == b'{"schema":1,"run"'
    (aborted,) = entries(job, "aborted")
    left = [entry["left"] for entry in (aborted, entries(job, "failed")[1])]
    assert left == [f"{ATTEMPTS}/offline.performance-{number}" for number in (1, 2)]
    assert all(
        (job.out / folder / "user.conf").exists() and not (job.out / folder / RUN_FILE).exists() for folder in left
    )
    assert not list((job.folder / RUNS).glob("*.partial"))

    # Nothing is left to do, and no server is started for it.
    performance = job.record("performance")
    assert job.start().wait(90) == 0, job.log.read_text()
    states = job.states()
    assert {
        states[name].last.state
        for name in ("server", "Offline accuracy", "Offline accuracy: scores", "Offline performance")
    } == {State.KEPT}
    assert job.record("performance")["files"] == performance["files"]
    assert "starting vLLM" not in job.log.read_text()


@contextmanager
def given_server(port, profile=PROFILE):
    """Start a server that the job did not start, at a port; it has ended when this is left."""
    process = subprocess.Popen(
        [sys.executable, SERVER, f"--profile={profile}", "--served-model-name=small", f"--port={port}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models"):
                break
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def stopped(tmp_path, slow):
    """A job at --api_server that was killed in its accuracy run after two answers; its server has ended, too."""
    port = free_port("127.0.0.1", 0)
    job = SmallJob(tmp_path)
    job.given = (
        f"CM_MLPERF_INFERENCE_API_SERVER=http://127.0.0.1:{port}",
        "CM_VLLM_SERVER_MODEL_NAME=small",
        "CM_MLPERF_LOADGEN_MODES=accuracy",
    )
    answers = file_of(job.folder / RUNS / "accuracy")
    with given_server(port):
        process = job.start(*job.given)
        job.wait_until(process, lambda: answers.exists() and len(kept_answers(answers)) >= 2)
        process.kill()
        process.wait()
    slow.unlink()
    return job, port


def test_answers_of_another_server_at_the_same_address_do_not_enter_the_log(stopped, tmp_path):
    job, port = stopped
    other = tmp_path / "other.yaml"
    other.write_text(PROFILE.read_text().replace("max_model_len: 2048", "max_model_len: 4096"))
    with given_server(port, other):
        assert job.start(*job.given, "CM_MLPERF_ACCEPT_RESTARTED_SERVER=yes").wait(90) == 0, job.log.read_text()
    log = " ".join(job.log.read_text().split())
    assert "the answers from before it was stopped are removed: the server at" in log
    assert "model.max_model_len was 2048, now 4096" in log
    assert (job.record("accuracy")["client"]["kept"], job.record("accuracy")["pieces"]) == (0, [])


@pytest.mark.parametrize("accepted", [False, True])
def test_a_server_that_was_started_again_is_accepted_only_where_that_is_asked(stopped, accepted):
    job, port = stopped
    flag = ("CM_MLPERF_ACCEPT_RESTARTED_SERVER=yes",) if accepted else ()
    with given_server(port):
        assert job.start(*job.given, *flag).wait(90) == 0, job.log.read_text()
    record, log = job.record("accuracy"), " ".join(job.log.read_text().split())
    assert "was started again: its process began at" in log
    assert (
        (record["client"]["kept"] >= 2) == (len(record["pieces"]) == 2) == bool(record["accepted_restarts"]) == accepted
    )
    with given_server(port):  # finished runs are kept
        assert job.start(*job.given).wait(90) == 0, job.log.read_text()
    assert job.states()["Offline accuracy"].last.state is State.KEPT
    assert job.record("accuracy")["files"] == record["files"]


@pytest.mark.parametrize("broken", [1, 2])
def test_an_environment_that_is_found_broken_is_made_again_once(broken):
    """The recipe raises EnvironmentBroken where the second one is broken, too."""
    codes = iter([EnvironmentBroken.exit_code] * broken + [0])

    def run(asked):
        return {"return": next(codes), "error": "no token", "new_env": {"CM_SERVER": "yes"}}

    recipes = recipes_of(run, {})
    with pytest.raises(EnvironmentBroken) if broken > 1 else nullcontext():
        assert recipes("run,vllm-server", {}) == {"CM_SERVER": "yes"}
