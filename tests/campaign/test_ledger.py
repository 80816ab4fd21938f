"""The ledger: appended whole or not at all, readable beside the command that writes it, torn lines set aside."""

import errno
import fcntl
import os

import pytest

from cm4vllm.campaign.ledger import ATTEMPTS, LEDGER_FILE, LOCK_FILE, Entry, LedgerFile, State, read_ledger
from cm4vllm.campaign.live.job_status import StatusSettings, report_status
from cm4vllm.campaign.planning.steps import Duration, Step
from cm4vllm.common.errors import DiskFull, NotWritable, UsageError
from cm4vllm.common.secrets.redaction import Vault


def entry(step, state, **fields):
    return Entry(run="", at="2026-01-01T00:00:00+00:00", step=step, state=state, **fields)


def test_the_entries_of_a_step_add_up(tmp_path):
    file = LedgerFile(tmp_path, "first 1")
    file.append([entry(name, State.PLANNED, tags="a,b") for name in ("model", "run")])
    file.append([entry("run", State.RUNNING, attempt=1, digest="d", inputs={"A": "b"})])
    file.append([entry("run", State.FAILED, attempt=1, took_s=3.0, why="died", left="attempts/run-1")])
    file.append([entry("run", State.RUNNING, attempt=2, digest="d")])
    file.append([entry("run", State.DONE, attempt=2, digest="d", took_s=2.0)])
    assert read_ledger(tmp_path) == file.ledger
    again = LedgerFile(tmp_path, "second 2")
    again.append([entry(name, State.PLANNED) for name in ("run", "other")])
    ledger = read_ledger(tmp_path)
    assert [state.last.step for state in ledger.of_last_run] == ["run", "other"]
    run = ledger.states["run"]
    assert (run.attempts, run.digest, run.took_s, run.last.inputs, run.last.tags) == (2, "d", 2.0, {"A": "b"}, "a,b")
    assert (ledger.digest("run"), ledger.digest("model"), ledger.attempts("model")) == ("d", "", 0)


def test_durations_are_those_of_the_schedule_or_of_before(tmp_path):
    file = LedgerFile(tmp_path, "first 1")
    file.append([entry("model", State.DONE, tags="a", took_s=5.0), entry("run", State.DONE, tags="b", took_s=2.0)])
    run, by_rules = Step(name="run", tags="b"), Duration(seconds=600, source="by the rules")

    def words(*steps):
        return [step.duration and step.duration.words for step in file.ledger.with_durations(steps)]

    assert words(Step(name="model", tags="a"), run) == ["5 s, as on 2026-01-01", "2 s, as on 2026-01-01"]
    assert words(Step(name="other", tags=""), run) == [None, "2 s, as on 2026-01-01"]
    assert words(Step(name="run", tags="b", duration=by_rules)) == ["600 s, by the rules"]
    assert words(Step(name="model", tags="c"), run) == [None, None]  # of another model nothing is known


@pytest.mark.parametrize("cut", [1, 20, 10_000])
def test_a_torn_last_line_is_set_aside(tmp_path, cut):
    LedgerFile(tmp_path, "first 1").append([entry("one", State.DONE), entry("two", State.DONE)])
    path = tmp_path / LEDGER_FILE
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    torn = lines[1][: -min(cut, len(lines[1]) - 1)]
    path.write_bytes(lines[0] + torn)
    assert list(read_ledger(tmp_path).states) == ["one"]  # a reader leaves it alone
    assert path.read_bytes() == lines[0] + torn
    file = LedgerFile(tmp_path, "second 2")
    assert file.torn.parent == tmp_path / ATTEMPTS
    assert file.torn.read_bytes() == torn
    file.append([entry("three", State.DONE)])
    assert list(read_ledger(tmp_path).states) == ["one", "three"]
    assert LedgerFile(tmp_path, "third 3").torn is None


def test_a_line_that_is_no_entry_is_counted(tmp_path):
    LedgerFile(tmp_path, "first 1").append([entry("one", State.DONE)])
    with (tmp_path / LEDGER_FILE).open("ab") as file:
        file.write(b'{"schema":2}\n\xff\xfe\n[]\n{"schema":1,"step":"no state"}\n')
    LedgerFile(tmp_path, "second 2").append([entry("two", State.DONE)])
    ledger = read_ledger(tmp_path)
    assert (list(ledger.states), ledger.unreadable) == (["one", "two"], 4)


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch):
    file = LedgerFile(tmp_path, "first 1")
    file.append([entry("one", State.DONE)])
    before = (tmp_path / LEDGER_FILE).read_bytes()
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:10]))
    with pytest.raises(DiskFull):
        file.append([entry("two", State.DONE)])
    assert (tmp_path / LEDGER_FILE).read_bytes() == before

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", real)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull):
        file.append([entry("two", State.DONE)])
    assert (tmp_path / LEDGER_FILE).read_bytes() == before
    assert list(file.ledger.states) == ["one"]


def test_a_folder_that_has_vanished_is_named(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    file = LedgerFile(out, "first 1")
    out.rmdir()
    with pytest.raises(NotWritable, match=r"ledger\.jsonl"):
        file.append([entry("one", State.DONE)])


def test_no_secret_stands_in_it(tmp_path):
    secrets = Vault({})
    secrets.note("MY_API_KEY", "s3cr3t-of-the-ledger")
    with secrets.guarded_output():
        LedgerFile(tmp_path, "first 1").append([entry("one", State.FAILED, why="refused s3cr3t-of-the-ledger")])
    assert b"s3cr3t" not in (tmp_path / LEDGER_FILE).read_bytes()


def test_the_status_is_shown_while_a_command_goes_on_and_after_it_was_killed(tmp_path, capsys):
    out = tmp_path / "test"
    out.mkdir()
    with pytest.raises(UsageError, match="no results of a job"):
        report_status(StatusSettings(output_dir=str(tmp_path)))
    file = LedgerFile(out, "2026-01-01T00:00:00+00:00 77")
    file.append([entry("one", State.PLANNED), entry("two", State.PLANNED)])
    file.append([entry("one", State.RUNNING, attempt=1)])
    with (out / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (job,) = report_status(StatusSettings(output_dir=str(tmp_path)))["jobs"]
    assert (job["under_way"], [step["state"] for step in job["steps"]]) == (True, ["running", "planned"])
    assert "running, process 77, since 2026-01-01" in capsys.readouterr().out
    (job,) = report_status(StatusSettings(output_dir=str(out)))["jobs"]
    assert (job["under_way"], [step["state"] for step in job["steps"]]) == (False, ["aborted", "planned"])
    shown = capsys.readouterr().out
    assert "not running; the last command began" in shown and "has ended without reporting it" in shown
    file.append([entry("one", State.DONE, attempt=2), entry("two", State.LEFT_OUT, why="no checker")])
    report_status(StatusSettings(output_dir=str(out)))
    assert "1 of 2 steps are done, 1 left out" in capsys.readouterr().out


def test_a_ledger_that_is_a_folder_is_named_with_a_remedy(tmp_path):
    (tmp_path / LEDGER_FILE).mkdir()
    for use in (
        lambda: LedgerFile(tmp_path, "first 1"),
        lambda: report_status(StatusSettings(output_dir=str(tmp_path))),
    ):
        with pytest.raises(NotWritable, match="cannot read") as refused:
            use()
        assert LEDGER_FILE in str(refused.value) and "it is no file" in refused.value.cause
        assert "--output_dir" in refused.value.remedy
