"""The ledger: appended whole or not at all, readable beside the command that writes it, torn lines set aside."""

import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import signal
from pathlib import Path

import msgspec
import pytest

from cm4vllm.campaign import job as module
from cm4vllm.campaign.kept_results import set_aside
from cm4vllm.campaign.ledger import ATTEMPTS, LEDGER_FILE, LOCK_FILE, Entry, LedgerFile, State, read_ledger
from cm4vllm.campaign.live.job_status import StatusSettings, report_status
from cm4vllm.campaign.planning.steps import Duration, Step
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import DiskFull, ModelError, NotWritable, UsageError
from cm4vllm.common.secrets.redaction import Vault
from small_job import RUNS, SmallJob


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


# --- a results folder that somebody else prepared or copied: nothing outside it is read, written, moved or waited for


FOLDER = "CM_MLPERF_OUTPUT_DIR"
#: Written by a job with the real recipes, beside what the small job writes.
ALSO = (
    *"status.json .status.json.partial summary.html summary.csv campaign.json rerun.yaml attempts search".split(),
    *(f"runs/sut/small/Offline/accuracy.{ending}" for ending in ("user.conf", "answers", "partial", "failed")),
)


def digests(folder):
    """Return what is in a folder: names, kinds, contents."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def small_job(tmp_path_factory):
    """Return a small job that was killed in its performance run."""
    job = SmallJob(tmp_path_factory.mktemp("job"))
    process = job.start()
    job.wait_until(process, lambda: job.is_measuring(process))
    job.kill(process)
    return job


def outside_of(folder):
    private = folder / "private"
    (private / "keys").mkdir(parents=True)
    (private / "keys" / "id").write_text("secret")
    return private


KINDS = {
    "a link to a file": lambda path, private: path.symlink_to(private / "keys" / "id"),
    "a link to a folder": lambda path, private: path.symlink_to(private / "keys"),
    "a link to a missing file": lambda path, private: path.symlink_to(private / "new"),
    "a pipe": lambda path, _: os.mkfifo(path),
}


class Asked:
    """Notes the recipes that are asked for, and ends the job at the model."""

    def __init__(self):
        self.tags = []

    def __call__(self, tags, env):
        self.tags.append(tags)
        raise ModelError("stop here")


def run(out, recipes):
    signal.alarm(60)
    try:
        module.run(Job.of(CampaignSettings(output_dir=str(out), run_checker=False)), recipes, "cm run script")
    finally:
        signal.alarm(0)


def test_a_link_or_a_pipe_in_the_place_of_anything_that_a_job_writes_is_refused_by_name(tmp_path, small_job):
    """Each place has one of the kinds, in turn."""
    private, kinds = outside_of(tmp_path), itertools.cycle(KINDS)
    before = digests(private)
    written = {str(path.relative_to(small_job.out)) for path in small_job.out.rglob("*")}
    assert {".lock", LEDGER_FILE, "server/server.json", "runs/sut/small/Offline/accuracy/run.json"} <= written
    for number, name in enumerate(sorted(written | set(ALSO))):
        base, kind = tmp_path / str(number), next(kinds)
        out = base / "test"
        shutil.copytree(small_job.out, out)
        made = out / name
        if made.is_dir():
            shutil.rmtree(made)
        made.unlink(missing_ok=True)
        made.parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind](made, private)
        kept, recipes = digests(out), Asked()
        with pytest.raises(UsageError) as caught:
            run(base, recipes)
        assert str(made) in caught.value.what and kind.partition(" to ")[0] in caught.value.what
        assert recipes.tags == [] and digests(out) == kept
        shutil.rmtree(base)
    assert digests(private) == before


def test_files_of_others_under_the_names_of_a_job_are_kept_and_said(tmp_path, capsys):
    out = tmp_path / "test"
    out.mkdir()
    names = ("status.json", "summary.html", "summary.csv")
    for name in names:
        (out / name).write_text(f"{name} of the user")
    with pytest.raises(ModelError):
        run(tmp_path, Asked())
    said = capsys.readouterr().out
    for name in names:
        assert (out / f"kept-{name}").read_text() == f"{name} of the user"
        assert f"{name} was not written by cm4vllm, or was changed since: it is now kept-{name}" in said
    with pytest.raises(ModelError):
        run(tmp_path, Asked())
    assert len(list(out.glob("kept-*"))) == len(names), "what the job itself wrote is no other's"


def test_a_results_folder_below_the_given_one_that_is_a_link_is_refused(tmp_path):
    private = outside_of(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "test").symlink_to(private)
    with pytest.raises(UsageError, match=r"results/test is a link"):
        run(tmp_path / "results", Asked())
    (tmp_path / "given").symlink_to("disk")  # the user's own link to another disk
    (tmp_path / "disk").mkdir()
    with pytest.raises(ModelError):
        run(tmp_path / "given", Asked())


def test_a_job_in_a_copy_leaves_the_original_as_it_is(tmp_path, small_job):
    original, copy = small_job, SmallJob(tmp_path)
    shutil.copytree(original.folder / "results", copy.folder / "results")
    before = digests(original.out)
    assert f"{RUNS.removeprefix('results/test/')}/performance.partial" in before
    assert copy.start().wait(90) == 0, copy.log.read_text()
    assert digests(original.out) == before
    states = copy.states()  # a job goes on in a folder of plain files
    assert (states["Offline accuracy"].last.state, states["Offline performance"].last.state) == (State.KEPT, State.DONE)
    aborted = [line for line in ledger_lines(copy.out) if line["state"] == "aborted"]
    assert [line["left"] for line in aborted] == [f"{ATTEMPTS}/offline.performance-1"]
    assert (copy.out / ATTEMPTS / "offline.performance-1" / "user.conf").exists()
    assert not any(str(original.folder) in str(line) for line in ledger_lines(copy.out))


def ledger_lines(out):
    return [msgspec.json.decode(line) for line in (out / LEDGER_FILE).read_bytes().splitlines()]


def running(step, folder):
    return Entry(run="", at="2026-01-01T00:00:00+00:00", step=step, state=State.RUNNING, inputs={FOLDER: str(folder)})


def test_paths_in_the_ledger_are_relative_and_those_of_a_model_are_not(tmp_path):
    inputs = {FOLDER: f"{tmp_path}/runs/a", "CM_ML_MODEL_RECORD": "/models/m.json", "CM_X": f"{tmp_path}", "CM_Y": "b"}
    LedgerFile(tmp_path, "first 1").append([Entry(run="", at="", step="run", state=State.RUNNING, inputs=inputs)])
    (line,) = ledger_lines(tmp_path)
    assert line["schema"] == 2
    assert line["inputs"] == {FOLDER: "runs/a", "CM_ML_MODEL_RECORD": "/models/m.json", "CM_X": ".", "CM_Y": "b"}
    assert read_ledger(tmp_path).states["run"].last.inputs == line["inputs"]


def test_an_older_ledger_is_read_and_its_whole_paths_lead_nowhere_else(tmp_path):
    original, copy = tmp_path / "original", tmp_path / "copy"
    (original / "runs" / "accuracy.partial").mkdir(parents=True)
    old = {
        "schema": 1,
        "run": "2026-01-01T00:00:00+00:00 1",
        "at": "2026-01-01T00:00:00+00:00",
        "step": "run",
        "state": "running",
        "inputs": {FOLDER: str(original / "runs" / "accuracy")},
    }
    (original / LEDGER_FILE).write_bytes(msgspec.json.encode(old) + b"\n")
    shutil.copytree(original, copy)
    before = digests(original)
    entry = read_ledger(copy).states["run"].last
    assert set_aside(copy, entry.step, entry.folder) == "" and digests(original) == before
    entry = read_ledger(original).states["run"].last
    assert entry.inputs == {FOLDER: "runs/accuracy"}
    assert set_aside(original, entry.step, entry.folder) == f"{ATTEMPTS}/run-1"
    assert not (original / "runs" / "accuracy.partial").exists()


@pytest.mark.parametrize("place", ["../outside/accuracy", "/{tmp}/outside/accuracy", "link/accuracy", ".", ""])
def test_nothing_outside_is_moved_whatever_the_ledger_says(tmp_path, place):
    out, outside = tmp_path / "out", tmp_path / "outside"
    for folder in (outside / "accuracy.partial", outside / "accuracy" / "probe-01", tmp_path / "out.partial"):
        folder.mkdir(parents=True)
    out.mkdir()
    (out / "link").symlink_to(outside)
    before = digests(tmp_path)
    assert set_aside(out, "run", Path(place.replace("/{tmp}", str(tmp_path)))) == ""
    assert digests(tmp_path) == before
