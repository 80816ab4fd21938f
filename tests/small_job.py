"""A small whole job on a simulated server, in processes of its own: what tests of stops, copies and faults start."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from cm4vllm.campaign.ledger import State, read_ledger
from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.records.run import RUN_FILE

ROOT = Path(__file__).parents[1]
JOB = ROOT / "benchmarks/fault_injection/job.py"
SERVER = ROOT / "src/cm4vllm/campaign/rehearsal/start.py"
PROFILE = JOB.with_name("small.yaml")
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
        """Return True if a process has begun the performance run."""
        state = read_ledger(self.out).states.get("Offline performance")
        return (
            state is not None
            and state.last.state is State.RUNNING
            and state.last.run.endswith(f" {process.pid}")
            and (self.folder / RUNS / "performance.partial" / "console.log").exists()
        )

    def kill(self, process):
        """Kill the job, and return when all its processes are gone: none of them writes to the folder any more."""
        process.kill()
        process.wait()
        deadline = time.monotonic() + 30
        while self.is_used():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def is_used(self):
        """Return True while a process has the folder in its command line, as the supervisor and LoadGen's have it."""
        started = [process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"])]
        return any(str(self.folder) in word for words in started for word in words)

    def kill_server(self):
        os.kill(json.loads((self.out / "server" / "supervisor.json").read_text())["server"], signal.SIGKILL)

    def states(self):
        return {state.last.step: state for state in read_ledger(self.out).of_last_run}

    def record(self, mode):
        return json.loads((self.folder / RUNS / mode / RUN_FILE).read_text())
