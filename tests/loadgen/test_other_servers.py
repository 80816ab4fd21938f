"""Another server at the same --api_server, or the same one started again, is noticed: answers of two never mix."""

import json
import shutil

import pytest
from fake_vllm import Behaviour, FakeVllm, Fault
from msgspec.structs import replace

from cm4vllm.common.errors import RunFailed, ServerUnsuitable
from cm4vllm.loadgen.identity import settings_sha256
from cm4vllm.loadgen.process.kept_answers import file_of, kept_answers
from cm4vllm.loadgen.process.runner import run
from cm4vllm.serving.probing.server_identities import identities, other_content, restarts

KEPT = 20


def pages(*, started=1000.0, version="0.32.0", created=1, **model):
    """Return what a server reports of itself; `created` is the time of asking."""
    entry = {"id": "tiny", "root": "hub/tiny", "max_model_len": 2048, "created": created, "permission": [created]}
    cache = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{int(started)}"}} 1.0'
    return {
        "/v1/models": json.dumps({"data": [{**entry, **model}]}),
        "/version": json.dumps({"version": version}),
        "/metrics": f"{cache}\nprocess_start_time_seconds {started}\n",
    }


def settings_with(make_settings, endpoint, mode="accuracy"):
    """Return the settings of a run, whose server was probed when the job began."""
    settings = make_settings(endpoint, "Offline", mode, max_in_flight=4)
    server = replace(settings.server, owned=False, model_name="tiny")
    return replace(settings, server=replace(server, identities=identities(server)))


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory, make_settings):
    """An accuracy run that was stopped after 20 answers, on a server that is up: its folder and the server."""
    dies = Behaviour(fault=lambda number: Fault.STATUS_400 if number >= KEPT else Fault.NONE, pages=pages())
    with FakeVllm(dies) as server:
        folder = tmp_path_factory.mktemp("stopped") / "run"
        with pytest.raises(RunFailed):
            run(settings_with(make_settings, server.endpoint), folder, keep_answers=True)
        assert len(kept_answers(file_of(folder))) == KEPT
        server.behaviour.fault = lambda number: Fault.NONE
        yield folder, server


@pytest.fixture
def stopped(tmp_path, stopped_once):
    """A copy of the stopped run, and its server, which has been asked nothing since."""
    folder, server = stopped_once
    server.behaviour.pages = pages()
    server.bodies.clear()
    shutil.copytree(folder.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / folder.name, server


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"root": "hub/other"}, "model.root was hub/tiny, now hub/other"),
        ({"max_model_len": 4096}, "model.max_model_len was 2048, now 4096"),
        ({"version": "0.31.0"}, "version.version was 0.32.0, now 0.31.0"),
        ({"id": "another"}, "model.id was tiny, now not reported"),
        ({"sha256": "12" * 32}, "model.sha256 was not reported, now 1212"),
    ],
    ids=["model", "length", "version", "name", "digest"],
)
def test_a_server_that_is_another_one_is_known_by_what_it_reports(make_settings, other, why):
    with FakeVllm(Behaviour(pages=pages())) as server:
        record = settings_with(make_settings, server.endpoint).server
        server.behaviour.pages = pages(**other)
        words = other_content(record.identities, identities(record))
    assert words[0].startswith(f"the server at {server.endpoint} is another one: ")
    assert any(why in each for each in words)


@pytest.mark.parametrize(
    ("change", "accept", "kept", "said"),
    [
        ({"version": "0.31.0"}, True, 0, "is another one: version.version was 0.32.0, now 0.31.0"),
        ({"started": 2000.0}, False, 0, "(--accept_restarted_server keeps the earlier answers)"),
        ({"started": 2000.0, "created": 2}, True, KEPT, ""),
        ({"created": 3}, False, KEPT, ""),
    ],
    ids=["another one", "started again", "accepted", "the same"],
)
def test_answers_are_kept_of_the_same_server_alone(stopped, make_settings, capsys, change, accept, kept, said):
    folder, server = stopped
    server.behaviour.pages = pages(**change)
    record = run(settings_with(make_settings, server.endpoint), folder, keep_answers=True, accept_restarted=accept)
    assert (len(server.bodies), record.client.kept) == (64 - kept, kept)
    assert len(record.pieces) == (2 if kept else 0)
    shown = "".join(capsys.readouterr())
    assert said in shown
    assert any(words in shown for words in ("started again", "another one")) is (kept == 0 or accept)
    began = "its process began at 1970-01-01T00:16:40.000+00:00, now 1970-01-01T00:33:20.000+00:00"
    assert ["".join(record.accepted_restarts)[-len(began) :]] == [began if accept and kept else ""]


@pytest.mark.parametrize(
    ("mode", "accept", "change"),
    [("performance", True, {"started": 2000.0}), ("accuracy", False, {"version": "0.31.0"})],
)
def test_a_server_that_changes_during_a_run_makes_it_invalid(tmp_path, make_settings, mode, accept, change):
    behaviour = Behaviour(pages=pages())

    def changes(number):
        if number == 30:
            behaviour.pages = pages(**change)
        return Fault.NONE

    behaviour.fault = changes
    with FakeVllm(behaviour) as server:
        settings = settings_with(make_settings, server.endpoint, mode)
        with pytest.raises(RunFailed, match="is INVALID: a server has changed during it") as refused:
            run(settings, tmp_path / "run", accept_restarted=accept)
    assert ("was started again" if "started" in change else "version.version was 0.32.0") in refused.value.cause
    assert not (tmp_path / "run").exists() and (tmp_path / "run.failed" / "failure.json").exists()


def test_a_page_of_metrics_that_is_no_longer_answered_loses_no_run(tmp_path, make_settings, monkeypatch, capsys):
    monkeypatch.setattr("cm4vllm.loadgen.process.run_servers.AGAIN_S", 0.1)
    monkeypatch.setattr("cm4vllm.serving.probing.server_identities._SHORT_S", 0.3)
    monkeypatch.setattr("cm4vllm.serving.probing.server_metrics._TIMEOUT_S", 0.3)
    behaviour = Behaviour(pages=pages(), hangs_s=0.6)

    def changes(number):
        if number == 30:
            behaviour.pages = pages() | {"/metrics": None}
        return Fault.NONE

    behaviour.fault = changes
    with FakeVllm(behaviour) as server:
        record = run(settings_with(make_settings, server.endpoint, "performance"), tmp_path / "run")
    assert record.client.failed == 0
    shown = capsys.readouterr()
    assert "whether it is the same process as at the begin of the" in shown.out + shown.err
    assert "its /metrics cannot be read" in shown.out + shown.err


def test_a_server_that_cannot_be_shown_to_be_the_same_makes_the_run_invalid(tmp_path, make_settings, monkeypatch):
    monkeypatch.setattr("cm4vllm.loadgen.process.run_servers.AGAIN_S", 0.1)
    behaviour = Behaviour(pages=pages())

    def changes(number):
        if number == 30:
            behaviour.pages = pages() | {"/version": None}
        return Fault.NONE

    behaviour.fault = changes
    with FakeVllm(behaviour) as server:
        settings = settings_with(make_settings, server.endpoint, "performance")
        with pytest.raises(RunFailed, match="whether its server is still the same is not known") as refused:
            run(settings, tmp_path / "run")
    assert "its /version cannot be read" in refused.value.cause


def test_a_server_that_changed_since_the_job_began_is_refused(tmp_path, make_settings):
    with FakeVllm(Behaviour(pages=pages())) as server:
        settings = settings_with(make_settings, server.endpoint)
        server.behaviour.pages = pages(root="hub/other")
        with pytest.raises(ServerUnsuitable, match="has changed since the job began"):
            run(settings, tmp_path / "run")
        assert not server.bodies


def test_several_processes_behind_one_address_are_no_restart(tmp_path, make_settings):
    behaviour = Behaviour(pages=pages())
    turns = iter(range(10**6))

    class Turns(dict):
        def get(self, path, default=None):
            return (
                pages(started=1000.0 + next(turns) % 2)["/metrics"]
                if path == "/metrics"
                else super().get(path, default)
            )

    behaviour.pages = Turns(pages())
    with FakeVllm(behaviour) as server:
        settings = settings_with(make_settings, server.endpoint, "performance")
        assert settings.server.identities[server.endpoint].process_started_s is None
        run(settings, tmp_path / "run")


def test_finished_runs_count_by_content_and_not_by_the_start_of_the_process(make_settings):
    with FakeVllm(Behaviour(pages=pages())) as server:
        before = settings_with(make_settings, server.endpoint)
        server.behaviour.pages = pages(started=2000.0, created=9)
        again = settings_with(make_settings, server.endpoint)
        server.behaviour.pages = pages(max_model_len=4096)
        other = settings_with(make_settings, server.endpoint)
    digests = [settings_sha256(settings) for settings in (before, again, other)]
    assert digests[0] == digests[1] != digests[2]
    assert restarts(before.server.identities, again.server.identities)
    assert other_content(before.server.identities, again.server.identities) == []


def test_each_of_several_servers_is_compared(make_settings, tmp_path):
    with FakeVllm(Behaviour(pages=pages())) as first, FakeVllm(Behaviour(pages=pages())) as other:
        settings = make_settings(first.endpoint, "Offline", "accuracy")
        server = replace(settings.server, owned=False, model_name="tiny", replicas=[other.endpoint])
        before = identities(server)
        other.behaviour.pages = pages(version="0.31.0", started=2000.0)
        now = identities(server)
    assert list(before) == [first.endpoint, other.endpoint]
    assert [words.split(" is ")[0] for words in other_content(before, now)] == [f"the server at {other.endpoint}"]
    assert len(restarts(before, now)) == 1
