"""A point counts only as the whole work of one server, and is kept only as it was measured: the client is small here.

The server is the test peer of the LoadGen client, which reports of itself what vLLM does.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pyarrow
import pytest
import yaml
from fake_vllm import Behaviour, FakeVllm, Fault
from made_points import SEEDS
from msgspec.structs import replace
from pyarrow import parquet
from small_curve import small_installation

from cm4vllm.campaign.endpoints.job import plan_job
from cm4vllm.campaign.endpoints.settings import EndpointsJob, EndpointsSettings
from cm4vllm.common.errors import DatasetError, RunFailed, RunIncomplete, ServerUnsuitable, SubmissionError, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import read_record, write_record
from cm4vllm.endpoints import point
from cm4vllm.endpoints.authoring import read_points
from cm4vllm.endpoints.client import ClientAbilities, ClientInstallation
from cm4vllm.endpoints.client_folder import prepare_folder
from cm4vllm.endpoints.curve_search import CurveInputs, earlier_curve, find_curve
from cm4vllm.endpoints.plan_words import remeasured_lines
from cm4vllm.endpoints.point import PointInputs, earlier_point, measure_point, point_setup, require_dataset_file
from cm4vllm.endpoints.records import PointRecord
from cm4vllm.records.access import Access
from cm4vllm.records.assets import STAND_IN_SOURCE, DatasetRecord, ModelRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.results.endpoints.curves import POINT_FILE
from cm4vllm.rules import endpoints_rules
from cm4vllm.serving.probing.server_identities import identities
from text_server import save_model

PASS = 64
COMMITS = endpoints_rules().client.commits


def pages(*, started=1000.0, version="0.32.0", **model):
    """Return what a server reports of itself."""
    entry = {"id": "tiny", "root": "hub/tiny", "max_model_len": 2048}
    return {
        "/v1/models": json.dumps({"data": [{**entry, **model}]}),
        "/version": json.dumps({"version": version}),
        "/metrics": f"process_start_time_seconds {started}\n",
    }


class Site:
    """The records of a point in a folder, for a server at an endpoint as it is when the records are made."""

    def __init__(self, folder, endpoint, *, stand_in=True):
        self.folder = folder
        self.dataset, self.model = folder / "dataset.json", save_model(folder / "model")
        (self.model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        draw = random.Random(0)
        rows = [
            {"input": "a", "tok_input": [draw.randrange(1, 700) for _ in range(9)], "output": "a"} for _ in range(PASS)
        ]
        self.dataset.write_text(json.dumps(rows))
        source = f"made for a test; {STAND_IN_SOURCE if stand_in else ''}"
        write_record(folder / "m.json", ModelRecord(name="tiny", path=str(self.model), source=source, sha256="0"))
        facts = {"source": "made here", "samples": PASS, "max_input_tokens": 9, "sentences": "punkt-untrained"}
        made = DatasetRecord(name="small", path=str(self.dataset), sha256=sha256_of(self.dataset), **facts)
        write_record(folder / "d.json", made)
        self.probe(endpoint)

    def probe(self, endpoint, **fields):
        """Take note of the server as the job's own step does."""
        facts = {"model_name": "tiny", "max_model_len": 2048, "version": "", "owned": False}
        server = ServerRecord(endpoint=endpoint, **facts, **fields)
        write_record(self.folder / "s.json", replace(server, identities=identities(server)))

    def inputs(self, name="point-1", **given):
        """Return the inputs of a point of 320 samples on the curve from 1 to 40."""
        records = {"model_record": "m.json", "dataset_record": "d.json", "server_record": "s.json"}
        paths = {key: str(self.folder / name) for key, name in records.items()}
        fixed = {"client": str(small_installation(self.folder)), "output_dir": str(self.folder / "points" / name)}
        return PointInputs(**{"concurrency": 4, "passes": 5, "c_min": 1, "c_max": 40, **fixed, **paths, **given})


@pytest.fixture(scope="module")
def behaviour():
    return Behaviour(pages=pages())


@pytest.fixture(scope="module")
def server(behaviour):
    with FakeVllm(behaviour) as server:
        yield server


@pytest.fixture
def site(tmp_path, server, behaviour):
    behaviour.pages, behaviour.fault = pages(), lambda number: Fault.NONE
    server.bodies.clear()
    return Site(tmp_path, server.endpoint)


def at(places, fault):
    return lambda number: fault if number in places else Fault.NONE


# --- failed requests


def test_a_point_with_failed_requests_is_no_point(site, server, behaviour):
    """The client ends with 0 and calls 320 of 320 completed."""
    closed, aborted = (3, 99, 200), (30, 100, 319)
    faults = dict.fromkeys(closed, Fault.CLOSE_MIDSTREAM) | dict.fromkeys(aborted, Fault.ABORTED)
    behaviour.fault = lambda number: faults.get(number, Fault.NONE)
    with pytest.raises(RunIncomplete, match="is not whole") as failed:
        measure_point(site.inputs())
    assert "6 requests of the performance run failed (" in failed.value.cause
    assert "IncompleteRead" in failed.value.cause
    assert "3 times the answer was cut off with the finish reason abort" in failed.value.cause
    summary = json.loads((site.folder / "points/point-1/performance/result_summary.json").read_text())
    assert (summary["n_samples_issued"], summary["n_samples_completed"]) == (320, 320)
    assert not (site.folder / "points/point-1" / POINT_FILE).exists()
    assert len(server.bodies) == 320


def test_a_server_that_refuses_all_requests_has_no_rate(site, behaviour):
    behaviour.fault = lambda number: Fault.STATUS_500
    with pytest.raises(RunIncomplete) as failed:
        measure_point(site.inputs(accuracy=True))
    assert failed.value.cause.startswith("0 of 320 were answered, 320 failed; ")
    assert "320 requests of the performance run failed" in failed.value.cause
    assert "64 requests of the accuracy run failed" in failed.value.cause


def test_figures_that_no_run_has_make_no_point(site, monkeypatch):
    monkeypatch.setenv("SMALL_FIGURES", json.dumps({"ttft": {"min": 0, "max": 0, "avg": 0}}))
    with pytest.raises(RunFailed, match="are those of no run") as failed:
        measure_point(site.inputs())
    assert "ttft.max is 0" in failed.value.cause
    assert earlier_point(site.inputs())[0] is None
    monkeypatch.delenv("SMALL_FIGURES")
    assert measure_point(site.inputs())[0].samples_per_second > 0


@pytest.mark.long
def test_a_point_of_the_reference_client_is_kept_as_it_was_measured(site, behaviour, reference_client):
    inputs = site.inputs(client=str(reference_client), accuracy=True)
    behaviour.fault = at((350,), Fault.STATUS_500)
    with pytest.raises(RunIncomplete) as failed:
        measure_point(inputs)
    assert "1 requests of the accuracy run failed (1 times HTTP 500" in failed.value.cause
    record, path = measure_point(inputs)
    assert earlier_point(inputs) == (record, "")
    assert {"events.jsonl", "config.yaml", "performance/result_summary.json"} <= record.files.keys()
    doubled(path.with_name("performance") / "result_summary.json")
    assert earlier_point(inputs)[1].endswith("removed: performance/result_summary.json")


def test_a_probe_with_failed_requests_places_no_point(site, behaviour):
    behaviour.fault = at((40,), Fault.STATUS_500)
    with pytest.raises(RunIncomplete, match="probe-40"):
        find_curve(CurveInputs(c_min=1, c_max=40, output_dir=str(site.folder / "curve")), site.inputs())


# --- another server

OTHERS = {
    "version": ({"version": "0.31.0"}, "version.version was 0.32.0, now 0.31.0"),
    "model": ({"root": "hub/other"}, "model.root was hub/tiny, now hub/other"),
    "restart": ({"started": 2000.0}, "was started again"),
}


@pytest.mark.parametrize(("other", "unanswered"), [("restart", ()), ("model", ("/version",))])
def test_a_server_that_changes_during_a_point_makes_it_invalid(site, behaviour, monkeypatch, other, unanswered):
    """It is seen by the pages that it answers."""
    monkeypatch.setattr("cm4vllm.loadgen.process.run_servers.AGAIN_S", 0.1)
    change, words = OTHERS[other]
    at_the_end(behaviour, unanswered, **change)
    with pytest.raises(RunFailed, match="the point-1 run is INVALID: a server has changed during it") as failed:
        measure_point(site.inputs())
    assert words in failed.value.cause
    assert not (site.folder / "points/point-1" / POINT_FILE).exists()


def at_the_end(behaviour, unanswered, **change):
    """Have another server answer from the 100th request on, which does not answer these pages."""

    def changes(number):
        if number == 100:
            behaviour.pages = pages(**change) | dict.fromkeys(unanswered)
        return Fault.NONE

    behaviour.fault = changes


@pytest.mark.parametrize(("unanswered", "hangs_s"), [(("/metrics",), 0.6), (tuple(pages()), 0.0)])
def test_a_point_whose_server_does_not_answer_at_its_end_is_no_point(site, behaviour, monkeypatch, unanswered, hangs_s):
    monkeypatch.setattr("cm4vllm.loadgen.process.run_servers.AGAIN_S", 0.1)
    monkeypatch.setattr("cm4vllm.serving.probing.server_identities._SHORT_S", 0.3)
    monkeypatch.setattr(behaviour, "hangs_s", hangs_s)
    at_the_end(behaviour, unanswered)
    with pytest.raises(RunFailed, match="the point-1 run is INVALID: whether its server is still the same") as failed:
        measure_point(site.inputs())
    assert all(f"its {path} cannot be read" in failed.value.cause for path in unanswered)
    assert not (site.folder / "points/point-1" / POINT_FILE).exists()


def test_a_server_that_does_not_answer_at_once_at_the_end_is_asked_again(site, behaviour, monkeypatch):
    monkeypatch.setattr("cm4vllm.loadgen.process.run_servers.AGAIN_S", 0.5)
    at_the_end(behaviour, pages())
    sleep = time.sleep

    def back(seconds):
        behaviour.pages = pages() if seconds == 0.5 else behaviour.pages
        sleep(seconds)

    monkeypatch.setattr("cm4vllm.loadgen.process.run_servers.time.sleep", back)
    assert measure_point(site.inputs())[1].exists()


def test_a_server_that_changed_between_two_points_is_not_measured_and_makes_no_curve(site, server, behaviour):
    change, words = OTHERS["version"]
    measure_point(site.inputs())
    behaviour.pages, asked = pages(**change), len(server.bodies)
    with pytest.raises(ServerUnsuitable, match="the point-2 run cannot begin: the server has changed") as refused:
        measure_point(site.inputs("point-2"))
    assert words in refused.value.cause and len(server.bodies) == asked
    site.probe(server.endpoint)  # as the same command does
    record, why_not = earlier_point(site.inputs())
    assert (record, why_not) == (None, "its inputs have changed")
    measure_point(site.inputs("point-2", concurrency=8))
    with pytest.raises(SubmissionError, match="are not of one curve") as refused:
        read_points(site.folder / "points")
    assert words in refused.value.cause


def test_the_same_server_started_again_between_two_points_is_the_same(site, server, behaviour):
    measure_point(site.inputs())
    behaviour.pages = pages(started=2000.0)
    measure_point(site.inputs("point-2"))
    site.probe(server.endpoint)
    assert earlier_point(site.inputs())[0] is not None
    assert len(read_points(site.folder / "points")) == 2


# --- what is kept


@pytest.fixture(scope="module")
def kept_once(tmp_path_factory, server, behaviour):
    """A curve's probes and a point with an accuracy run, measured once."""
    behaviour.pages, behaviour.fault = pages(), lambda number: Fault.NONE
    site = Site(tmp_path_factory.mktemp("kept"), server.endpoint)
    find_curve(CurveInputs(c_min=1, c_max=40, output_dir=str(site.folder / "curve")), site.inputs())
    measure_point(site.inputs(accuracy=True))
    return site


@pytest.fixture
def kept(tmp_path, kept_once, server):
    shutil.copytree(kept_once.folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "client.json").unlink()
    shutil.rmtree(tmp_path / "checkout")
    site = object.__new__(Site)
    site.folder = tmp_path
    shutil.copytree(kept_once.folder / "checkout", tmp_path / "checkout")
    shutil.copyfile(kept_once.folder / "client.json", tmp_path / "client.json")
    return site


def doubled(path):
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "tps": 2 * summary["tps"]}))


CHANGES = {
    "performance/result_summary.json": doubled,
    "events.jsonl": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "config.yaml": lambda path: path.write_text(path.read_text().replace("temperature: 0", "temperature: 1")),
    "accuracy/accuracy_results.json": Path.unlink,
    "sample_idx_map.json": lambda path: path.write_bytes(b""),
}


def test_a_point_whose_files_were_changed_is_measured_again_and_not_published(kept):
    inputs, folder = kept.inputs(accuracy=True), kept.folder / "points"
    (folder / "point-1" / "point.yaml").write_text("written by the bundle: no file of the client")
    for name, change in CHANGES.items():
        assert earlier_point(inputs)[0] is not None and read_points(folder)
        whole = (folder / "point-1" / name).read_bytes()
        change(folder / "point-1" / name)
        assert earlier_point(inputs) == (None, f"files of it have been changed or removed: {name}")
        with pytest.raises(SubmissionError, match="point-1 is not as it was measured") as refused:
            read_points(folder)
        assert name in refused.value.cause
        (folder / "point-1" / name).write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("performance/result_summary.json", doubled, "files of probe-40 have been changed or removed: performance"),
        ("events.jsonl", Path.unlink, "files of probe-40 have been changed or removed: events.jsonl"),
        (POINT_FILE, Path.unlink, "cannot read the PointRecord"),
    ],
)
def test_a_curve_whose_probes_were_changed_is_made_again(kept, name, change, words):
    inputs = CurveInputs(c_min=1, c_max=40, output_dir=str(kept.folder / "curve"))
    assert earlier_curve(inputs, kept.inputs())[1] == ""
    change(kept.folder / "curve" / "probe-40" / name)
    record, why_not = earlier_curve(inputs, kept.inputs())
    assert record is None and words in why_not


def test_a_probe_that_was_made_again_alone_is_none_of_the_curve(kept):
    inputs = CurveInputs(c_min=1, c_max=40, output_dir=str(kept.folder / "curve"))
    path = kept.folder / "curve" / "probe-40" / POINT_FILE
    write_record(path, replace(read_record(path, PointRecord), samples_per_second=4.0))
    assert earlier_curve(inputs, kept.inputs())[1] == "probe-40 is another run"


# --- the identity


def identity(site, **given):
    return point_setup(site.inputs(**given)).identity


def test_what_a_result_depends_on_is_in_its_identity_and_nothing_else(site, server, monkeypatch):
    first = identity(site)
    monkeypatch.setenv("OTHER_NAME", "key")
    site.probe(server.endpoint, access=Access(key_env="OTHER_NAME"))
    assert identity(site) == first
    site.probe(server.endpoint.replace("127.0.0.1", "localhost"))
    assert identity(site) != first
    site.probe(server.endpoint)
    dataset = read_record(site.folder / "d.json", DatasetRecord)
    for change in ({"sha256": "1" * 64}, {"samples": PASS + 1}):
        write_record(site.folder / "d.json", replace(dataset, **change))
        assert identity(site, pass_samples=PASS) != first


def table(path, rows, text="a"):
    parquet.write_table(pyarrow.table({"prompt": [f"{text} {number}" for number in range(rows)]}), path)
    return path


def test_a_given_dataset_is_part_of_the_identity_by_its_content_and_rows(tmp_path, server, behaviour):
    behaviour.pages = pages()
    site, rows = Site(tmp_path, server.endpoint, stand_in=False), endpoints_rules().benchmark("llama3_1-8b").samples
    given, same = table(tmp_path / "a.parquet", rows), table(tmp_path / "b.parquet", rows)
    other = table(tmp_path / "c.parquet", rows, text="b")
    made = point_setup(site.inputs(dataset_file=str(given)))
    assert (made.dataset_sha256, made.dataset_rows) == (sha256_of(given), rows)
    assert identity(site, dataset_file=str(same)) == made.identity
    assert len({made.identity, identity(site, dataset_file=str(other)), identity(site)}) == 3


@pytest.mark.parametrize("rows", [0, 13369])
def test_a_given_dataset_of_other_rows_is_refused_by_the_plan(tmp_path, rows):
    path = table(tmp_path / "set.parquet", rows)
    settings = EndpointsSettings(vllm_model_name="hub/name", dataset_path=str(path), output_dir=str(tmp_path))
    with pytest.raises(DatasetError, match=f"has {rows:,} rows") as refused:
        EndpointsJob.of(settings)
    assert "13,368 samples" in refused.value.cause and "--dataset_path" in refused.value.remedy


@pytest.mark.parametrize("content", [None, b"PAR1 no table PAR1", "folder"])
def test_a_given_dataset_that_is_no_parquet_file_is_refused_by_the_plan(tmp_path, content):
    path = tmp_path / "set.parquet"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(DatasetError):
        require_dataset_file(endpoints_rules().benchmark("gpt-oss-120b"), str(path))


def test_a_dataset_of_an_earlier_command_is_not_read_by_a_later_one_that_gives_none(tmp_path, site):
    model, place = read_record(site.folder / "m.json", ModelRecord), "cache/set.parquet"
    given = table(tmp_path / "set.parquet", 3)
    prepare_folder(tmp_path / "points", model, None, files={place: given})
    assert (tmp_path / "points" / place).read_bytes() == given.read_bytes()
    prepare_folder(tmp_path / "points", model, None, files={place: None})
    assert not (tmp_path / "points" / place).exists()
    (tmp_path / "points" / place).write_bytes(b"fetched by the client")
    prepare_folder(tmp_path / "points", model, None, files={place: None})
    assert (tmp_path / "points" / place).read_bytes() == b"fetched by the client"


# --- files of the user


KILLED = """
import sys
import msgspec
from cm4vllm.endpoints.point import PointInputs, measure_point
measure_point(msgspec.json.decode(sys.argv[1], type=PointInputs))
"""


def test_notes_in_the_point_of_a_killed_client_are_kept_and_said(site, tmp_path, capsys):
    """The client is killed with its supervisor: no process is left that could list its files."""
    inputs, held = site.inputs(), tmp_path / "held"
    held.mkdir()
    (held / "point-1").touch()
    words = [sys.executable, "-c", KILLED, json.dumps(msgspec.to_builtins(inputs))]
    job = subprocess.Popen(words, env={**os.environ, "SMALL_HELD": str(held)}, stdout=subprocess.DEVNULL)
    log, deadline = site.folder / "points" / "point-1.log", time.monotonic() + 60
    while not (log.exists() and "[" in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in [*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)]:
        process.kill()
    job.wait()
    point = site.folder / "points" / "point-1"
    assert (point / "events.jsonl").exists()
    (point / "notes.txt").write_text("mine")
    (point / "performance" / "thesis.tex").write_text("mine")
    measure_point(inputs)
    kept = site.folder / "points" / "kept-point-1"
    assert (kept / "notes.txt").read_text() == (kept / "performance" / "thesis.tex").read_text() == "mine"
    assert str(kept) in capsys.readouterr().out and not (point / "notes.txt").exists()
    assert read_record(point / POINT_FILE, PointRecord).run.samples == 320


def test_notes_in_a_point_that_failed_are_kept_and_its_own_files_are_replaced(site, behaviour):
    behaviour.fault = at((3,), Fault.STATUS_500)
    with pytest.raises(RunIncomplete):
        measure_point(site.inputs())
    points = site.folder / "points"
    (points / "point-1" / "notes.txt").write_text("mine")
    behaviour.fault = lambda number: Fault.NONE
    measure_point(site.inputs())
    assert [path.name for path in (points / "kept-point-1").rglob("*")] == ["notes.txt"]


#: What a user may have beside a point, where the client's dataset, tokenizer, metric and sentence model lie.
BESIDE = tuple(
    (
        "tokenizer/tokenizer.json tokenizer/special_tokens_map.json rouge/rouge.py small.jsonl "
        "nltk_data/tokenizers/punkt_tab/english/abbrev_types.txt "
        "nltk_data/tokenizers/punkt_tab/english/notes.txt"
    ).split()
)


def test_files_of_the_user_beside_a_point_are_kept(site, capsys):
    points = site.folder / "points"
    for name in BESIDE:
        (points / name).parent.mkdir(parents=True, exist_ok=True)
        (points / name).write_text("mine")
    measure_point(site.inputs())
    said = capsys.readouterr().out
    kept = {path for path in points.rglob("*") if path.is_file() and path.read_text(errors="replace") == "mine"}
    assert {path.name for path in kept} == set(
        "abbrev_types.txt notes.txt kept-rouge.py kept-small.jsonl special_tokens_map.json tokenizer.json".split()
    )
    assert all(word in said for word in ("kept-tokenizer", "kept-rouge.py", "kept-small.jsonl", "kept-english"))
    assert not (points / "tokenizer" / "special_tokens_map.json").exists()
    measure_point(site.inputs("point-2"))
    assert "kept" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("TimeoutError: Ready check failed: 1/2 signals received within 30.0s", RunIncomplete),
        ("Failed to connect to endpoint: Workers failed to initialize within 40.0s", RunIncomplete),
        ("Failed to connect to endpoint: no route", RunFailed),
    ],
)
def test_a_client_that_is_not_ready_in_time_is_one_attempt_of_its_step(site, monkeypatch, said, error):
    """RunIncomplete is made again by the job, as often as --attempts has it; RunFailed ends it."""
    monkeypatch.setenv("SMALL_FAILS", f"Traceback\n{said}\n")
    with pytest.raises(error) as failed:
        measure_point(site.inputs())
    assert said in failed.value.cause
    monkeypatch.delenv("SMALL_FAILS")
    measure_point(site.inputs())


# --- the abilities of the client


def able_client(site, **abilities):
    """Note abilities of the small client, and return the path of its record."""
    path = small_installation(site.folder)
    write_record(path, replace(read_record(path, ClientInstallation), abilities=ClientAbilities(**abilities)))
    return path


def test_a_client_that_computes_the_steady_state_is_asked_for_it_and_its_figures_count(site, monkeypatch, capsys):
    able_client(site, steady_state=True)
    measure_point(site.inputs())
    assert "has no steady state: it is computed from the client's events" in capsys.readouterr().out
    block = {"found": False, "superpass_size": PASS, "n_super_passes": 9, "warmup": 2, "window": None}
    monkeypatch.setenv("SMALL_FIGURES", json.dumps({"steady_state": block}))
    record, path = measure_point(site.inputs())
    assert yaml.safe_load((path.parent / "config.yaml").read_text())["settings"]["steady_state"] == {"enabled": True}
    assert (record.steady_state.status, record.steady_state.blocks) == ("insufficient_passes", 7)
    able_client(site)
    record, path = measure_point(site.inputs())
    assert "steady_state" not in yaml.safe_load((path.parent / "config.yaml").read_text())["settings"]
    own = record.steady_state  # how many passes are the warm-up depends on the machine
    assert own.warm_up + own.blocks == 5


def test_a_dataset_that_the_client_has_no_name_for_is_refused(tmp_path, server, behaviour):
    behaviour.pages = pages()
    site = Site(tmp_path, server.endpoint, stand_in=False)
    able_client(site, datasets=("cnn_dailymail", "random"))
    assert point_setup(site.inputs()).run.dataset.name == "cnn_dailymail::llama3_8b"
    able_client(site, datasets=("random",))
    with pytest.raises(UsageError, match="has no dataset cnn_dailymail::llama3_8b"):
        point_setup(site.inputs())


def test_runs_of_another_client_are_measured_again_and_the_plan_names_both_commits(site):
    other = "0123456789" * 4
    places = {"points/point-1": COMMITS[0], "points/point-12": other, "points/point-2": other, "curve/probe-40": other}
    record, path = measure_point(site.inputs("made"))
    for place, commit in places.items():
        shutil.copytree(path.parent, site.folder / place, dirs_exist_ok=True)
        write_record(site.folder / place / POINT_FILE, replace(record, client_commit=commit, identity=""))
    (site.folder / "points/point-3").mkdir()
    (site.folder / "points/point-3" / POINT_FILE).write_text("{")
    now = record.client_commit
    assert earlier_point(site.inputs("point-2"))[1] == f"its client is another: 012345678901, now {now[:12]}"
    assert list(remeasured_lines(site.folder, now, endpoints_rules(), SEEDS)) == [
        f"measured again: probe-40, point-2, point-12; its client is another: 012345678901, now {now[:12]}",
        f"measured again: point-1; its client is another: {COMMITS[0][:12]}, now {now[:12]}",
    ]
    assert next(remeasured_lines(site.folder, other, endpoints_rules(), SEEDS)).startswith(
        "measured again: point-1; its client"
    )
    seeds = replace(SEEDS, name="B", scheduler=1)
    lines = list(remeasured_lines(site.folder, other, endpoints_rules(), seeds))
    assert "measured again: probe-40, point-2, point-12; its seeds are those of the set A, now B" in lines
    stricter = replace(endpoints_rules(), window=replace(endpoints_rules().window, variation=0.01))
    lines = list(remeasured_lines(site.folder, other, stricter, SEEDS))
    dated = endpoints_rules().dated
    assert any(f"its rules of curve, lengths or window are those of {dated}" in line for line in lines)


def test_the_plan_of_a_job_says_which_runs_it_makes_again(site, tmp_path, capsys):
    record, path = measure_point(site.inputs("made"))
    shutil.copytree(path.parent, tmp_path / "endpoints/test/points/point-1")
    made = replace(record, client_commit="0123456789" * 4)
    write_record(tmp_path / "endpoints/test/points/point-1" / POINT_FILE, made)
    plan_job(EndpointsSettings(output_dir=str(tmp_path)))
    line = f"note: measured again: point-1; its client is another: 012345678901, now {COMMITS[-1][:12]}"
    assert line in capsys.readouterr().out


# --- what the client was given, and what it read and reached


def config_of(path):
    return yaml.safe_load((path.parent / "config.yaml").read_text())["settings"]["runtime"]


def test_a_valid_run_gives_the_client_the_seconds_of_the_rules_and_the_same_whole_passes(site):
    rehearsed, path = measure_point(site.inputs())
    assert (config_of(path)["min_duration_ms"], config_of(path)["n_samples_to_issue"]) == (0, 320)
    valid, path = measure_point(site.inputs(execution_mode="valid"))
    assert (config_of(path)["min_duration_ms"], config_of(path)["n_samples_to_issue"]) == (600_000, 320)
    assert valid.identity != rehearsed.identity and valid.run.samples == 5 * PASS
    assert point_setup(site.inputs(execution_mode="valid", concurrency=33)).run.min_duration_ms == 1_200_000
    assert point_setup(site.inputs(execution_mode="valid", samples=32)).run.min_duration_ms == 0


def test_the_requests_in_flight_follow_from_latency_and_duration(site, monkeypatch, capsys):
    """320 answers that take 25 ms each on average, in 4 s."""
    figures = {"duration_ns": 4 * 10**9, "latency": {"avg": 25e6}, "ttft": {}}
    monkeypatch.setenv("SMALL_FIGURES", json.dumps(figures))
    record, _ = measure_point(site.inputs())
    assert record.in_flight == pytest.approx(2.0)
    assert "2 in flight on average" in capsys.readouterr().out


def test_the_dataset_that_the_client_fetched_has_a_digest(tmp_path, server, behaviour):
    behaviour.pages = pages()
    site = Site(tmp_path, server.endpoint, stand_in=False)
    planned = point_setup(site.inputs())
    assert (planned.dataset_sha256, planned.dataset_rows) == ("", 0)
    place = tmp_path / "points" / planned.benchmark.performance.cached
    assert point._dataset_read(planned, tmp_path / "points") == {}
    place.parent.mkdir(parents=True)
    table(place, 3)
    assert point._dataset_read(planned, tmp_path / "points") == {"dataset_sha256": sha256_of(place), "dataset_rows": 3}
    given = replace(planned, dataset_sha256="ab")
    assert point._dataset_read(given, tmp_path / "points") == {}
