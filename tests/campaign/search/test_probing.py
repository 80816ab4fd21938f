"""Probes by real LoadGen runs against a test peer: ended as soon as the verdict is certain, and recorded."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
from fake_vllm import Behaviour, FakeVllm, Fault
from msgspec.structs import replace
from test_other_servers import pages

from cm4vllm.campaign.search import probing
from cm4vllm.campaign.search.probe_verdict import ProbePlan
from cm4vllm.campaign.search.probing import PROBE_FILE, LoadGenProber, find_target_rate, full_length_settings, plan_of
from cm4vllm.campaign.search.rate_search import SearchPlan
from cm4vllm.common.errors import RunFailed, ServerDied, UsageError
from cm4vllm.common.records import read_record, write_record
from cm4vllm.hardware.readiness import MachineLimits
from cm4vllm.loadgen import measurement
from cm4vllm.loadgen.measurement import RunInputs, earlier_run, settings_of
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.records.logs.early_stopping import percentile
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.run import RUN_FILE
from cm4vllm.records.searches.rate_search import (
    SEARCH_FILE,
    Boundary,
    ProbeRecord,
    SearchOutcome,
    SearchRecord,
    Verdict,
)
from cm4vllm.rules import ExecutionMode
from cm4vllm.serving.probing.server_identities import identities


@pytest.fixture
def server_settings(make_settings):
    def make(server, **fields):
        return replace(make_settings(server.endpoint, "Server", "performance"), max_tokens=8, **fields)

    return make


def prober(settings, folder, **conf):
    """Return a prober whose full-length runs have the user.conf of a rehearsal."""

    def at(rate):
        text = user_conf(
            settings.terms,
            ExecutionMode.TEST,
            dataset_samples=settings.samples,
            target_qps=conf["target_qps"],
            test_query_count=conf["test_query_count"],
            max_test_duration_s=conf["max_test_duration"],
        ).text
        return replace(settings, user_conf=text, target_qps=rate)

    return LoadGenProber(settings, folder, at)


def test_a_probe_that_was_ended_early_is_none_where_its_server_has_changed(tmp_path, server_settings):
    behaviour = Behaviour(token_delay_s=0.15, pages=pages())

    def changes(number):
        if number == 20:
            behaviour.pages = pages(started=2000.0)
        return Fault.NONE

    behaviour.fault = changes
    with FakeVllm(behaviour) as server:
        settings = server_settings(server)
        known = replace(settings.server, owned=False, model_name="tiny")
        settings = replace(settings, server=replace(known, identities=identities(known)))
        with pytest.raises(RunFailed, match="is INVALID: a server has changed during it"):
            prober(settings, tmp_path).probe(60, ProbePlan(40, warm_up_s=1, full_s=60))
    assert not list(tmp_path.glob(f"*/{PROBE_FILE}"))


def test_a_probe_that_cannot_pass_is_ended_early_and_leaves_its_record(tmp_path, server_settings):
    with FakeVllm(Behaviour(token_delay_s=0.15)) as server:
        maker = prober(server_settings(server), tmp_path)
        probe, window = maker.probe(60, ProbePlan(40, warm_up_s=1, full_s=60))
    assert (probe.verdict, probe.ended_early) == (Verdict.FAILS, True)
    assert probe.took_s < 40
    assert window.rate == 60
    assert maker.full.whole == 64  # LoadGen says at once, in its log, that it issues whole datasets of this model
    assert len(window.issued) >= probe.queries > 0
    assert probe.binding.name == "TPOT"
    assert read_record(tmp_path / "probe-01" / PROBE_FILE, ProbeRecord) == probe
    assert not (tmp_path / "probe-01" / RUN_FILE).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".probe-01.cm4vllm.json", "probe-01"]
    assert "target_qps = 60" in (tmp_path / "probe-01" / "user.conf").read_text()


def test_a_full_length_run_passes_if_loadgen_finds_it_valid(tmp_path, server_settings):
    with FakeVllm(Behaviour(token_delay_s=0.002)) as server:
        maker = prober(server_settings(server), tmp_path, target_qps=150.0, test_query_count=None, max_test_duration=4)
        probe, window = maker.probe(150, ProbePlan(4, warm_up_s=0, full_s=4, sure=True, most_late=1000))
    assert (probe.ended_early, probe.sure) == (False, True)
    assert (probe.verdict is Verdict.PASSES) is all(limit.p99_ms <= limit.limit_ms for limit in probe.limits)
    assert probe.verdict is Verdict.PASSES or not read_performance(tmp_path / "probe-01").valid
    assert probe.queries == len(window.issued) == read_performance(tmp_path / "probe-01").samples > 459
    assert json.loads((tmp_path / "probe-01" / RUN_FILE).read_text())["notice"].startswith("REHEARSAL")
    assert probe.queries % maker.full.whole == 0


@pytest.mark.timing
def test_the_latencies_that_are_judged_are_those_of_loadgen(tmp_path, server_settings):
    """LoadGen's are longer where the machine stops its threads: of three runs, the one disturbed least counts."""
    apart = []
    for attempt in range(3):
        seen, folder = [], tmp_path / f"run{attempt}"
        with FakeVllm(Behaviour(token_delay_s=0.005)) as server:
            run(server_settings(server), folder, on_latencies=lambda news, seen=seen: bool(seen.append(news)))
        result, answers = read_performance(folder), [answer for news in seen for answer in news.answers]
        assert len(answers) == seen[-1].issued == result.samples
        assert (seen[-1].overdue, seen[-1].oldest_open_s) == (0, None)
        ttft = result.figures["ttft_p99"] - percentile([answer.ttft_ms for answer in answers])
        tpot = result.figures["tpot_p99"] - percentile([answer.tpot_ms for answer in answers if answer.tpot_ms])
        apart.append((ttft, tpot))
        assert ttft >= 0
        if ttft <= 5 and abs(tpot) <= 2:
            return
    pytest.fail(f"LoadGen's TTFT and TPOT less the client's, p99 in ms, of three runs: {apart}")


def test_a_server_that_has_ended_ends_the_search(tmp_path, server_settings, monkeypatch):
    monkeypatch.setattr(probing, "death_reason", lambda server: "killed by a signal")
    with FakeVllm(Behaviour(token_delay_s=0.15)) as server:
        dying = prober(server_settings(server), tmp_path)
        with pytest.raises(ServerDied):
            dying.probe(20, ProbePlan(seconds=20, warm_up_s=1, full_s=60))


def inputs(tmp_path, settings, **fields):
    paths = {}
    for name in ("model", "dataset", "server"):
        paths[f"{name}_record"] = str(tmp_path / f"{name}.json")
        write_record(tmp_path / f"{name}.json", getattr(settings, name))
    given = {"scenario": "Server", "mode": "performance", "target_qps": 150.0, "num_workers": 1}
    return RunInputs(**{**given, "output_dir": str(tmp_path / "search"), **paths, **fields})


def test_offline_has_no_rate_to_search_for(tmp_path, server_settings):
    with FakeVllm() as server:
        settings = server_settings(server)
    with pytest.raises(UsageError, match="Offline scenario has no rate to search for"):
        find_target_rate(inputs(tmp_path, settings, scenario="Offline"))


def test_a_search_plans_no_rate_that_the_machine_refuses(tmp_path, server_settings, monkeypatch):
    monkeypatch.setattr(probing, "machine_limits", lambda: MachineLimits(open_files=128))
    with FakeVllm() as server:
        asked = inputs(tmp_path, server_settings(server), max_test_duration=5.0)
    at = partial(full_length_settings, asked)
    plan = plan_of(at(1.0), at)
    assert 1.0 < plan.highest < 100.0 and plan.why_highest.endswith("128 are allowed")


def test_a_search_leaves_its_record_and_a_folder_for_each_probe(tmp_path, server_settings, monkeypatch):
    monkeypatch.setattr(probing, "plan_of", short_plan)
    # Few pieces an answer: a busy machine, too, has answers within the 2 s of a probe.
    with FakeVllm(Behaviour(token_delay_s=0.002, tokens_per_chunk=16)) as server:
        record, path = find_target_rate(inputs(tmp_path, server_settings(server), max_test_duration=5.0))
    assert path == tmp_path / "search" / SEARCH_FILE
    assert read_record(path, SearchRecord) == record
    assert record.probes[0].rate == pytest.approx(record.start, rel=1e-3)
    assert record.result == "", "a rehearsal is no result"
    assert [f"probe-{probe.number:02d}" for probe in record.probes] == sorted(
        entry.name for entry in path.parent.iterdir() if entry.is_dir()
    )
    assert record.start < 150


def test_the_full_length_run_that_passed_becomes_the_result_and_is_not_made_again(
    tmp_path, server_settings, monkeypatch
):
    monkeypatch.setattr(probing, "search", one_run)
    monkeypatch.setattr(measurement, "read_performance", lambda folder: SimpleNamespace(valid=True))
    real = measurement.run_settings  # the rehearsal's length, counted as a result
    monkeypatch.setattr(
        measurement,
        "run_settings",
        lambda *args, **kwargs: replace(
            real(*args, **kwargs), rehearsal=False, terms=replace(args[0].terms, min_duration_ms=5000)
        ),
    )
    result = tmp_path / "runs" / "performance"
    left = tmp_path / "search" / "probe-09"
    left.mkdir(parents=True)
    with FakeVllm(Behaviour(token_delay_s=0.002)) as server:
        places = {"search_result_dir": str(result), "user_conf": "of an earlier run"}
        asked = inputs(tmp_path, server_settings(server), max_test_duration=5.0, **places)
        record, _ = find_target_rate(asked)
        assert record.result == str(result)
        assert not left.exists(), "a probe of an earlier search"
        before = len(server.bodies)
        following = replace(asked, output_dir=str(result), target_qps=record.rate, user_conf="")
        made = earlier_run(result, settings_of(following))[0]
        assert len(server.bodies) == before
    assert made.settings.target_qps == record.rate
    assert not (result / PROBE_FILE).exists()


def one_run(prober, start, plan, seen):
    """Find a rate by one full-length run, which this machine may be too busy to make valid."""
    made, _ = prober.probe(150.0, ProbePlan(5, warm_up_s=0, full_s=5, sure=True, most_late=10**6))
    words = {"binding": "", "cause": "", "stopped": "", "boundary": Boundary.UNKNOWN}
    bracket = {"rate": made.rate, "low": made.rate, "high": None, "lowest_failing": None}
    return SearchOutcome(confirmed=True, probes=[replace(made, verdict=Verdict.PASSES)], **bracket, **words)


def short_plan(settings, at):
    return SearchPlan(settings.terms.limits, probes_s=(2.0,), approach_s=1.0, runs=0.0, budget_s=16.0)
