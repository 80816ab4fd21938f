"""The same command again: what is done is kept, what was stopped goes on, and what failed is set aside."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cm4vllm.campaign.ledger import ATTEMPTS, LEDGER_FILE, State, read_ledger
from cm4vllm.common.processes import die_with_parent
from cm4vllm.loadgen.kept_answers import file_of, kept_answers
from cm4vllm.loadgen.logs import ACCURACY_LOG, read_accuracy_log
from cm4vllm.loadgen.records import RUN_FILE

ROOT = Path(__file__).parents[2]
JOB = ROOT / "benchmarks/fault_injection/job.py"
RUNS = "results/test/runs/sut/small/Offline"


class SmallJob:
    """A job with two LoadGen runs on a small server, which takes some seconds for each, in processes of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.out = folder / "results" / "test"
        self.log = folder / "job.log"

    def start(self, *given):
        with self.log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, JOB, self.folder, "CM_MLPERF_LOADGEN_MAX_IN_FLIGHT=4", *given],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
            )

    def wait_until(self, process, holds):
        deadline = time.monotonic() + 90
        while not holds():
            assert process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def is_measuring(self, process):
        """Say whether a process has begun the performance run."""
        state = read_ledger(self.out).states.get("Offline performance")
        return (
            state is not None
            and state.last.state is State.RUNNING
            and state.last.run.endswith(f" {process.pid}")
            and (self.folder / RUNS / "performance.partial" / "console.log").exists()
        )

    def kill_server(self):
        os.kill(json.loads((self.out / "server" / "supervisor.json").read_text())["server"], signal.SIGKILL)

    def states(self):
        return {state.last.step: state for state in read_ledger(self.out).of_last_run}

    def record(self, mode):
        return json.loads((self.folder / RUNS / mode / RUN_FILE).read_text())


def entries(job, state):
    lines = [json.loads(line) for line in (job.out / LEDGER_FILE).read_text().splitlines()]
    return [entry for entry in lines if entry["state"] == state]


def test_a_job_survives_the_end_of_its_server_and_its_own_and_makes_nothing_twice(tmp_path):
    job = SmallJob(tmp_path)
    answers = file_of(job.folder / RUNS / "accuracy")
    process = job.start()
    job.wait_until(process, lambda: answers.exists() and len(kept_answers(answers)) >= 8)
    job.kill_server()
    job.wait_until(process, lambda: job.is_measuring(process))
    process.kill()
    process.wait()

    # An accuracy run goes on with a new server.
    accuracy, logged = job.record("accuracy"), read_accuracy_log(job.folder / RUNS / "accuracy" / ACCURACY_LOG)
    shares = [piece["answers"] for piece in accuracy["pieces"]]
    assert len(shares) == 2 and sum(shares) == 64 and shares[0] >= 8
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
    assert all((job.out / one / "user.conf").exists() and not (job.out / one / RUN_FILE).exists() for one in left)
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
