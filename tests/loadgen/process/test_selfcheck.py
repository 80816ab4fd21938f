"""The self-check before a run: the real client, against the server in memory."""

import resource
from functools import partial

import pytest
from fake_vllm import FakeVllm, prompt
from msgspec.structs import replace

from cm4vllm.loadgen.client.wire import Sampling, completion_body
from cm4vllm.loadgen.process import selfcheck
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.loadgen.process.selfcheck import expected_tokens, in_words, self_check
from cm4vllm.rules import Mode, Scenario, terms


@pytest.fixture
def checked(make_settings, monkeypatch):
    monkeypatch.setattr(selfcheck, "PACED_S", 0.3)
    monkeypatch.setattr(selfcheck, "CLOSED_S", 0.1)

    def check(scenario, least=1, **more):
        settings = make_settings("http://127.0.0.1:1", scenario, "performance", **more)
        sampling = Sampling("tiny", 128, 2, settings.stream_interval)
        library = SampleLibrary([prompt(i) for i in range(64)], partial(completion_body, sampling))
        return settings, self_check(settings, library, least)

    return check


def test_offline_the_capacity_is_what_was_answered(checked):
    settings, check = checked("Offline")
    assert check.capacity_qps == pytest.approx(check.qps, abs=0.1)
    assert check.queries >= 500
    assert check.tokens == 128
    assert check.added_ttft is None
    assert "1 worker can carry" in in_words(check, settings)


@pytest.mark.parametrize("stream_interval", [1, 16])
def test_in_server_queries_come_at_the_runs_rate_and_the_added_ttft_is_measured(checked, stream_interval):
    settings, check = checked("Server", target_qps=80, stream_interval=stream_interval)
    assert check.qps == 80
    assert check.capacity_qps == pytest.approx(80 / max(check.busiest_share, 0.01), rel=0.1)
    assert check.added_ttft is not None and 0 < check.added_ttft.p50_ms <= check.added_ttft.p99_ms
    assert "times the expected load; it adds" in in_words(check, settings)


def test_the_number_of_workers_is_the_one_that_is_asked_for(checked):
    assert checked("Server", num_workers=2)[1].workers == 2


def test_more_workers_are_taken_where_one_is_too_few_and_there_are_processors(checked, monkeypatch):
    monkeypatch.setattr(selfcheck, "usable_processors", lambda: 4)
    monkeypatch.setattr(selfcheck, "HEADROOM", 1e9)
    _, check = checked("Server")
    assert check.workers > 1 or not check.busiest.startswith("worker")


def test_a_run_has_its_check_in_its_record(tmp_path, make_settings):
    with FakeVllm() as server:
        record = run(make_settings(server.endpoint, "Server", "performance", self_check=True), tmp_path / "run")
        assert len(server.bodies) == record.client.requests
    assert record.client.self_check is not None
    assert record.client.self_check.workers == len(record.client.processes) - 1


def test_the_expected_length_is_the_middle_of_the_benchmarks_bounds(make_settings):
    settings = make_settings("http://127.0.0.1:1", "Server", "performance")
    assert expected_tokens(settings) == 128
    long = terms("v6.1", "llama2-70b-99.9", Scenario.SERVER, Mode.PERFORMANCE)
    assert expected_tokens(replace(settings, terms=long, max_tokens=1024)) == 294
    speech = terms("v6.1", "whisper", Scenario.OFFLINE, Mode.PERFORMANCE)
    assert expected_tokens(replace(settings, terms=speech, max_tokens=200)) == 76


def test_the_check_begins_with_the_workers_that_the_machines_limits_ask_for(checked):
    assert checked("Server", least=3)[1].workers == 3


def test_offline_the_server_in_memory_gets_no_more_connections_than_it_may_have(checked):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, hard))
    try:
        assert checked("Offline", max_in_flight=400, num_workers=8)[1].queries >= 500
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
