"""The same command again: what is done is kept, what has changed is done again, and what was killed is set aside."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cm4vllm.campaign.ledger import ATTEMPTS, LEDGER_FILE, State, read_ledger
from cm4vllm.common.processes import die_with_parent
from cm4vllm.loadgen.records import RUN_FILE

JOB = Path(__file__).parents[2] / "benchmarks/fault_injection/job.py"
SRC = Path(__file__).parents[2] / "src"
RUNS = "results/test/runs/sut/small/Offline"


class SmallJob:
    """A job with two LoadGen runs on a fast server, in processes of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.out = folder / "results" / "test"
        self.log = folder / "job.log"

    def start(self, *given):
        with self.log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, JOB, self.folder, *given], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
                preexec_fn=die_with_parent, start_new_session=True)

    def run(self, *given):
        """Run it to its end; return the states of its steps."""
        assert self.start(*given).wait(120) == 0, self.log.read_text()
        return {state.last.step: state for state in read_ledger(self.out).of_last_run}

    def wait_for(self, step, process):
        """Wait until a step is under way."""
        deadline = time.monotonic() + 60
        while True:
            state = read_ledger(self.out).states.get(step)
            if state and state.last.state is State.RUNNING:
                return
            assert process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def record(self, mode):
        """Return when a run was made, and the digests of its logs."""
        record = json.loads((self.folder / RUNS / mode / RUN_FILE).read_text())
        return record["started_at"], record["files"]


def test_the_same_command_goes_on_where_one_was_killed_and_keeps_what_is_done(tmp_path):
    job = SmallJob(tmp_path)
    killed = job.start()
    job.wait_for("Offline performance", killed)
    partial = job.folder / RUNS / "performance.partial"
    while not partial.exists():
        time.sleep(0.01)
    accuracy = job.record("accuracy")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    with (job.out / LEDGER_FILE).open("ab") as file:
        file.write(b'{"schema":1,"run"')
    states = job.run()
    assert job.record("accuracy") == accuracy
    assert (states["Offline accuracy"].last.state, states["Offline accuracy"].attempts) == (State.KEPT, 1)
    assert states["Offline accuracy: scores"].last.state is State.KEPT
    assert (states["Offline performance"].last.state, states["Offline performance"].attempts) == (State.DONE, 2)
    assert states["server"].attempts == 2
    (aside,) = (job.out / ATTEMPTS).glob("offline.performance-*")
    assert (aside / "user.conf").exists() and not (aside / RUN_FILE).exists()
    assert (job.out / ATTEMPTS / "torn-line-of-ledger-1").read_bytes() == b'{"schema":1,"run"'
    assert not partial.exists()
    entries = [json.loads(line) for line in (job.out / LEDGER_FILE).read_text().splitlines()]
    (aborted,) = [entry for entry in entries if entry["state"] == "aborted"]
    assert (aborted["step"], aborted["left"]) == ("Offline performance", f"{ATTEMPTS}/{aside.name}")

    performance = job.record("performance")
    states = job.run()
    assert {name: states[name].last.state for name in ("server", "Offline accuracy", "Offline performance")} == {
        "server": State.KEPT, "Offline accuracy": State.KEPT, "Offline performance": State.KEPT}
    assert "no step needed it" in states["server"].last.why
    assert (job.record("accuracy"), job.record("performance")) == (accuracy, performance)
    assert "starting vLLM" not in job.log.read_text()
