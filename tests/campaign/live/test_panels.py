"""The panels of a state, drawn as text and on a terminal of 80 columns."""

import fcntl
import itertools
import os
import pty
import struct
import sys
import termios
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from states import ACCURACY_RUN, CURVE, SEARCH, SERVER_RUN, STEPS, status, step

from cm4vllm.campaign.ledger import LOCK_FILE, LedgerFile, State
from cm4vllm.campaign.live import monitor as module
from cm4vllm.campaign.live import status as live
from cm4vllm.campaign.live.job_status import StatusSettings, report_status
from cm4vllm.campaign.live.monitor import Monitor, watched
from cm4vllm.campaign.live.panels import Tone, view_of
from cm4vllm.campaign.live.status import STATUS_FILE, JobState, JobStatus, StatusRecord, StepStatus, job_left
from cm4vllm.campaign.live.terminal import plain_text
from cm4vllm.common import progress
from cm4vllm.common.errors import ModelError
from cm4vllm.common.records import read_record, write_record
from cm4vllm.loadgen.process.messages import ClientStatus, LatencyStatus, RunStatus, ServerStatus, TimeLeft
from cm4vllm.records.searches.rate_search import SearchStatus, TriedRate

STATES = {
    "server run": status(),
    "accuracy run": status(run=ACCURACY_RUN),
    "search": status(search=SEARCH),
    "curve": status(run=None, curve=CURVE),
    "first step": status(
        steps=tuple(step(line.name, "running" if line is STEPS[0] else "planned") for line in STEPS),
        run=None,
        doing="cloning",
        progress="",
        left=None,
        warnings=(),
    ),
    "preparing": status(run=replace(SERVER_RUN, elapsed_s=0.0, latencies=(), server=None)),
    "failed": status(state=JobState.FAILED, run=None, left=None, cause="the server ended during the Server run"),
    "many warnings": status(warnings=tuple(f"warning {n}" for n in range(9))),
    "long words": status(run=None, doing="downloading " + "x" * 200, progress="12 of 99 GB " * 12),
}


@pytest.mark.parametrize("name", STATES)
def test_every_state_fits_80_columns_and_24_lines(name):
    lines = plain_text(view_of(STATES[name])).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24


def test_a_server_run_is_shown_with_all_that_is_known_of_it():
    text = plain_text(view_of(status()))
    for part in (
        "llama3.1-8b v6.1",
        "running, 6:45",
        "REHEARSAL",
        "9 of 15 steps, at least 7:16 left",
        "running   Server performance",
        "4:07",
        "planned   Server accuracy",
        "about 1:20",
        "3 steps after",
        "[#####.......] 41%  12,340 of 30,012",
        "5:57 left (5:53 to 5:59)",
        "50.1 samples/s, 6,413 tokens/s, 214 in flight",
        "TTFT      p50 61.2, p99 812 of 2,000 ms, at most 903; passes so far",
        "TPOT      p50 31.0, p99 104 of 100 ms; 180 over, 5,660 more needed",
        "server    198 running, 12 waiting, KV cache 87%, 4 preemptions",
        "client    can carry 26.2 times the load",
        "31% of the processors are in use",
    ):
        assert part in text, part


def test_a_step_that_failed_is_shown_with_the_first_line_of_why_alone():
    failed = step("checker source", "failed", why="it cannot be reached\n  cause:  no network\n  remedy: give it")
    text = plain_text(view_of(status(steps=(failed, *STEPS))))
    assert "checker source: it cannot be reached" in text and "remedy" not in text


def test_an_accuracy_run_shows_its_client_and_a_search_its_bracket():
    text = plain_text(view_of(status(run=ACCURACY_RUN, search=SEARCH)))
    assert "can carry 1.2 times the load; 1.5 are needed" in text
    assert "5: 285.4 queries/s, a probe of 1:15" in text
    assert "271 passes, 301.2 fails (queries/s)" in text


def test_a_curve_shows_its_point_the_time_left_and_the_points_so_far():
    text = plain_text(view_of(status(run=None, curve=CURVE)))
    assert "point 3 of 7" in text
    assert "in flight: 120 of 480 samples" in text and "0:28 left" in text
    assert text.index("1,412 tokens/s; no steady state") < text.index("505 tokens/s, 462.2 per user; insufficient_dur")
    assert "the client starts" in plain_text(view_of(status(run=None, curve=replace(CURVE, done=0, total=0))))


def test_a_planned_curve_gives_its_points_the_seconds_that_are_foreseen(tmp_path):
    steps = (step("point 3", "running", 12.5), step("point 4", "planned"), step("bundle", "planned"))
    job = JobStatus("a job", [], lambda: steps)
    with progress.step("480 samples") as shown:
        assert job.read().left is None
        shown.facts = CURVE
        seen = job.read()
    assert [line.expected_s for line in seen.steps] == [40.0, 50.0, None]
    assert (seen.left.seconds, seen.left_is_least, seen.curve) == (77.5, True, CURVE)


def test_a_status_that_is_no_longer_written_is_of_a_process_that_has_ended():
    assert view_of(status(), age_s=9).state == "running, 6:45"
    shown = view_of(status(), age_s=75)
    assert "no sign of life for 1:15" in shown.state
    assert shown.tone is Tone.BAD and not shown.ended
    assert view_of(status(state=JobState.DONE), age_s=1e6).state == "done, 6:45"


def test_another_process_reads_the_same(tmp_path):
    assert live.read_status(tmp_path) is None
    write_record(tmp_path / STATUS_FILE, status())
    assert plain_text(view_of(*live.read_status(tmp_path))) == plain_text(view_of(status()))
    os.utime(tmp_path / STATUS_FILE, (1e9, 1e9))
    assert "no sign of life for" in plain_text(view_of(*live.read_status(tmp_path)))
    (tmp_path / STATUS_FILE).write_text('{"schema": 99}')
    assert live.read_status(tmp_path) is None


def test_status_mlperf_shows_the_view_while_a_command_goes_on(tmp_path, capsys):
    LedgerFile(tmp_path, "2026-01-01T00:00:00+00:00 77").enter("Server performance", State.RUNNING)
    write_record(tmp_path / STATUS_FILE, status())
    with (tmp_path / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (job,) = report_status(StatusSettings(output_dir=str(tmp_path)))["jobs"]
    assert "TTFT      p50 61.2, p99 812 of 2,000 ms, at most 903; passes so far" in capsys.readouterr().out
    assert job["status"]["run"]["done"] == 12_340
    report_status(StatusSettings(output_dir=str(tmp_path)))
    assert "passes so far" not in capsys.readouterr().out


def test_every_field_is_documented():
    page = (Path(__file__).parents[3] / "docs/status.md").read_text()
    of_run = [RunStatus, TimeLeft, LatencyStatus, ServerStatus, ClientStatus]
    kinds = [StatusRecord, StepStatus, *of_run, SearchStatus, TriedRate]
    names = {name for kind in kinds for name in kind.__struct_fields__}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


# --- the time left ---------------------------------------------------------------------------------------------------


def test_the_time_left_is_that_of_the_run_and_of_the_steps_after_it():
    left, least = job_left(STEPS, SERVER_RUN)
    assert left == TimeLeft(seconds=440.0, low=436.0, high=442.1)
    assert least  # of some steps nothing is known
    left, least = job_left([step("a", "running", 5.0, expected_s=8.0), step("b", "planned", expected_s=2.0)], None)
    assert (left.seconds, least) == (5.0, False)
    assert job_left([step("a", "running", 5.0)], None) == (None, True)
    assert job_left([step("a", "planned", expected_s=600.0, at_least=True)], None)[1]


# --- a job that runs -------------------------------------------------------------------------------------------------


def test_a_job_writes_its_status_and_says_at_the_end_how_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL_S", 0.05)
    job = JobStatus("a job", ["a notice"], lambda: STEPS)
    with pytest.raises(ModelError), watched(job, tmp_path):
        with progress.step("running") as shown:
            shown.facts = SERVER_RUN
            shown.update("12,340 samples")
            deadline = time.monotonic() + 10
            while (seen := read_record(tmp_path / STATUS_FILE, StatusRecord)).run is None or not seen.progress:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        raise ModelError("no such model")
    assert seen.state is JobState.RUNNING
    assert (seen.run, seen.doing, seen.progress, seen.steps) == (SERVER_RUN, "running", "12,340 samples", STEPS)
    last = read_record(tmp_path / STATUS_FILE, StatusRecord)
    assert (last.state, last.cause, last.run) == (JobState.FAILED, "no such model", None)
    assert [path.name for path in tmp_path.iterdir()] == [STATUS_FILE]


def test_a_folder_that_vanishes_is_not_made_again_and_does_not_end_the_job(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with watched(JobStatus("a job", [], lambda: STEPS), folder):
        (folder / STATUS_FILE).unlink()
        folder.rmdir()
    assert not folder.exists()


def test_no_secret_of_the_run_is_in_the_status(tmp_path, monkeypatch):
    token = "hf_" + "abcdefghijklmnopqrstuvwxyz012345"
    monkeypatch.setenv("HF_TOKEN", token)
    job = JobStatus("a job", [], lambda: [step("a", "failed", why=f"with {token}")])
    with watched(job, tmp_path):
        pass
    assert "hf_abc" not in (tmp_path / STATUS_FILE).read_text()


# --- on a terminal ---------------------------------------------------------------------------------------------------


@contextmanager
def terminal():
    """Have standard output be a terminal of 80 x 24; give a function that returns what was written to it."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    received, marks = [], 0

    def read():
        try:
            while data := os.read(reader, 65536):
                received.append(data)
        except OSError:  # the terminal was closed
            pass

    def written() -> str:
        nonlocal marks
        marks += 1
        stream.write("\0")  # which no view has: what was written before has been read when it is there
        stream.flush()
        deadline = time.monotonic() + 30
        while (data := b"".join(received)).count(b"\0") < marks:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return data.rpartition(b"\0")[0].replace(b"\0", b"").decode()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    with os.fdopen(writer, "w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", "80")  # rich asks the process's own streams, which are no terminal here
        patch.setenv("LINES", "24")
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        patch.setattr(sys, "stdout", stream)
        yield written
    thread.join(60)
    os.close(reader)


def test_lines_that_are_printed_stay_above_the_view_and_steps_draw_no_line_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0)
    with terminal() as written:
        with watched(JobStatus("a job", [], lambda: STEPS), tmp_path) as monitor:
            with monitor.drawn():
                with progress.step("measuring [x]") as shown:
                    shown.facts = SERVER_RUN
                    shown.update("1 of 2")
                    monitor._pass_on()
                    drawn = screen_of(written())
                    progress.warn("too hot [/y]")
                    monitor._pass_on()
                progress.say("a line")
            print("the table")
        output = written()
    assert any(line.startswith("running   Server performance") and line.endswith("4:07") for line in drawn)
    assert any(line.startswith("server    198 running, 12 waiting") for line in drawn)
    screen = [line for line in screen_of(output) if line]
    assert screen[-2].endswith("a line") and screen[-1] == "the table"
    assert any("WARNING: too hot [/y]" in line for line in screen)
    assert not any("samples/s" in line for line in screen), "the view is still on the screen"
    assert "12,340 of 30,012" in output
    assert "measuring [x]: 1 of 2" not in output


def test_lines_that_one_thread_prints_while_another_draws_leave_nothing_of_the_view(tmp_path):
    with terminal() as written:
        heights = itertools.cycle([[], STEPS])  # views of few lines and of more, in turn
        monitor = Monitor(JobStatus("a job", [], lambda: next(heights)), tmp_path, interval_s=1e-4)
        monitor.start()
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with monitor.drawn():
                for number in range(400):
                    print(f"line {number}")
        finally:
            sys.setswitchinterval(before)
        monitor.stop()
        output = written()
    assert [line for line in screen_of(output) if line] == [f"line {number}" for number in range(400)]


def test_a_view_that_is_higher_than_the_terminal_is_cut_and_leaves_nothing_behind(tmp_path):
    job = JobStatus("a job", [f"notice {number}" for number in range(40)], lambda: STEPS)
    with terminal() as written:
        with watched(job, tmp_path) as monitor:
            with monitor.drawn():
                monitor._pass_on()
                print("a line")
                drawn = screen_of(written())
            print("the table")
        left = screen_of(written())
    assert "notice 18" in drawn and drawn[-1].startswith("... ") and drawn[-1].endswith(" lines more")
    assert [line for line in left if line] == ["a line", "the table"]


def test_nothing_is_drawn_where_there_is_no_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with watched(JobStatus("a job", [], lambda: STEPS), tmp_path) as monitor, monitor.drawn():
        monitor._pass_on()
    assert capsys.readouterr().out == ""


def screen_of(output: str, rows: int = 24, columns: int = 80) -> list[str]:
    """Return the lines of a terminal after `output`, those that have left it at the top included.

    It follows what rich uses of the control sequences of ECMA-48.
    """
    lines, row, column, at, gone = [[" "] * columns for _ in range(rows)], 0, 0, 0, []
    while at < len(output):
        if output[at] == "\x1b":
            end = at + 2
            while not output[end].isalpha():
                end += 1
            number = output[at + 2 : end]
            if output[end] == "A":
                row = max(0, row - int(number or 1))
            elif output[end] == "K" and number == "2":
                lines[row] = [" "] * columns
            at = end + 1
            continue
        if output[at] == "\n":
            row += 1
            if row == rows:
                gone.append(lines[0])
                lines, row = [*lines[1:], [" "] * columns], rows - 1
        elif output[at] == "\r":
            column = 0
        elif column < columns:
            lines[row][column] = output[at]
            column += 1
        at += 1
    return ["".join(line).rstrip() for line in (*gone, *lines)]
