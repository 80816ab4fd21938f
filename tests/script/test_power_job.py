"""Whole jobs with simulated power on a simulated server, killed in both phases of the session and given again."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from cm4vllm.records.power.samples import SIMULATED
from cm4vllm.records.power.session import SESSION, PowerSession, reasons_unmeasured

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("own_network")]

FLAGS = ("--rehearse=2-core-cpu-tiny", "--power=simulated", "--scenario=Offline", "--output_dir=results")


@pytest.fixture
def start(cm, power_dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that starts the job, whose temporary files are in a folder of the test."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return lambda: cm.start_main_job(*FLAGS, f"--power_src={power_dev}", tags=",_vllm,_performance-only")


def wait_for_phase(running, folder: Path, mark: str) -> None:
    """Wait until the analyzer samples a phase of the performance run's session, and remember all processes."""
    running.wait_for("made twice in one power session", 120)
    deadline = time.monotonic() + 120
    while not any(f"_{mark}," in log.read_text() for log in folder.glob("cm4vllm-power-*/tmp*/ptd_logfile_1.log")):
        assert running.process.poll() is None, running.output()
        assert time.monotonic() < deadline, running.output()
        time.sleep(0.2)
    running.started = set(psutil.Process(running.process.pid).children(recursive=True))


def test_a_job_that_is_killed_in_both_phases_finishes_with_the_same_command(cm, start, tmp_path: Path) -> None:
    results = cm.cwd / "results" / "test"
    for mark in ("ranging", "testing"):
        running = start()
        wait_for_phase(running, tmp_path / "tmp", mark)
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait(10)
        running.no_orphans()
        assert not list(results.glob(f"runs/*/*/*/{SESSION}"))
    begin = time.monotonic()
    done = start().finish(240)
    assert done.code == 0 and time.monotonic() - begin < 240, done.output
    assert list((tmp_path / "tmp").iterdir()) == []
    (folder,) = results.glob(f"runs/*/*/*/{SESSION}")
    session = PowerSession(folder)
    assert reasons_unmeasured(session) == () and session.simulated
    assert {path.name for path in folder.parent.iterdir()} == {"performance", SESSION}
    assert SIMULATED in (results / "summary.html").read_text() and not list(results.glob("submission*"))
    again = start().finish(120)
    assert again.code == 0 and "Offline performance: kept" in again.output, again.output
    assert "power session without a measurement" in done.output and "power session" not in again.output
    assert PowerSession(folder).client == session.client  # kept, with its session
