"""The settings of a run with random weights: one length for all answers, and the notice of it."""

import dataclasses
import json
import math
import resource
import subprocess
import sys
from functools import partial

import pytest
from fake_vllm import FakeVllm
from msgspec.structs import replace

from cm4vllm import DUMMY_NOTICE, REHEARSAL_NOTICE
from cm4vllm.common.errors import InstallError, LimitTooLow, UsageError
from cm4vllm.common.records import write_record
from cm4vllm.hardware.readiness import MachineLimits
from cm4vllm.loadgen import wheel
from cm4vllm.loadgen.limits import FILES_BESIDE, WORKER_BYTES, Load, demand_of, highest_rate, needs
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.settings import in_flight_of, run_settings
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.loadgen.wheel import LoadGenSettings, provide, require_seeds, usable_wheel
from cm4vllm.records.assets import DUMMY_SOURCE, ModelRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.vllm.given_options import given_options
from cm4vllm.rules import ExecutionMode, Mode, Scenario, terms


@pytest.mark.parametrize(
    ("round_name", "benchmark", "length"),
    [
        ("v6.1", "llama3.1-8b", 128),  # the limit: the rules publish no mean length
        ("v6.0", "llama2-70b-99", 294),
        ("v6.0", "llama3.1-405b", 685),
    ],
)
def test_random_weights_answer_with_the_mean_length_that_the_rules_publish(dataset, round_name, benchmark, length):
    run_terms = terms(round_name, benchmark, Scenario.OFFLINE, Mode.PERFORMANCE)
    conf = user_conf(run_terms, ExecutionMode.TEST, target_qps=1, test_query_count=8, dataset_samples=dataset.samples)
    server = ServerRecord(endpoint="http://a:1", model_name="m", max_model_len=4096, version="0", owned=False)
    model = ModelRecord(name="m", path="", source=DUMMY_SOURCE, sha256="", min_tokens=2)
    settings = run_settings(conf, model=model, dataset=dataset, server=server)
    assert (settings.min_tokens, settings.max_tokens) == (length, length)
    assert settings.notice == f"{DUMMY_NOTICE}; {REHEARSAL_NOTICE}"
    real = run_settings(conf, model=replace(model, source="elsewhere"), dataset=dataset, server=server)
    assert (real.min_tokens, real.max_tokens) == (2, run_terms.generation.max_tokens)
    assert real.notice == REHEARSAL_NOTICE


@pytest.mark.parametrize(
    ("words", "in_flight"),
    [
        ([], 2048),
        (["--max-num-seqs", "64"], 128),
        (["--max_num_seqs=64"], 128),
        (["--max-num-seqs=256", "--max_num_seqs=64"], 128),
        (["--max-num-seqs=0"], 2048),
        (["--max-num-seqs=64", "-dp=4"], 512),
    ],
)
def test_the_client_keeps_two_requests_in_flight_for_each_sequence_of_the_server(words, in_flight):
    assert in_flight_of(given_options(["vllm", "serve", "m", *words])) == in_flight


# --- the limits of a run: workers, open files on both sides, ports, memory; and the refusals


MANY = MachineLimits(open_files=2**20, local_ports=60_000, memory_bytes=2**40)


@pytest.fixture
def demand(make_settings):
    """Return what a run asks for, of a server that the job started unless `owned` is False."""

    def make(scenario="Server", owned=True, argv=(), endpoint="http://a:1", replicas=(), **more):
        settings = make_settings(endpoint, scenario, "performance", **more)
        server = replace(settings.server, owned=owned, argv=list(argv), replicas=list(replicas))
        return demand_of(replace(settings, server=server))

    return make


def test_open_requests_are_bounded_by_the_rate_the_limits_and_the_number_of_queries(demand):
    assert demand("Offline", max_in_flight=700).open == 700
    assert demand("SingleStream", benchmark="llama3.1-8b-edge", target_qps=3).open == 1
    # 2 s to the first token, 128 tokens at 0.1 s: a run of 5,000 queries may have 1,480 open, one of 64 has them all
    assert demand(target_qps=100, test_query_count=5000).open == 1480
    assert demand(target_qps=100).open == 64


def test_a_rehearsal_of_ten_seconds_has_no_more_open_than_it_issues():
    load = Load(count=256, duration_s=10, answer_s=822.2)
    assert load.at(28.8) == 288 + 68  # four standard deviations of 288 arrivals
    assert load.at(1) == 256 and load.at(0.1) == 83
    assert Load(count=256, duration_s=600, answer_s=822.2).at(28.8) < 28.8 * 822.2
    assert Load(duration_s=600, answer_s=822.2).at(28.8) == 23680
    assert load.at(None) is None and Load(count=256, answer_s=822.2).at(None) == 256


def test_one_process_is_enough_where_the_limit_is_high(demand):
    need = needs(demand("Offline", max_in_flight=3000), MANY)
    assert (need.workers, need.client_files) == (1, 3000 + FILES_BESIDE)
    assert need.server_files == 3000 + 64


@pytest.mark.parametrize(("files", "workers"), [(20_000, 2), (4096, 6), (1024, 25)])
def test_the_client_has_more_processes_where_one_may_open_too_few_files(demand, files, workers):
    need = needs(demand("Offline", max_in_flight=23_694, owned=False), MachineLimits(open_files=files))
    assert need.workers == workers
    assert need.client_files <= files < dataclasses.replace(need, workers=workers - 1).client_files


def test_the_number_that_is_asked_for_is_used_and_refused_with_the_one_that_would_do(demand):
    limits = MachineLimits(open_files=20_000)
    assert needs(demand("Offline", max_in_flight=23_694, owned=False, num_workers=5), limits).workers == 5
    with pytest.raises(LimitTooLow, match="23,758 open files in a process of the client, 20,000 are") as refused:
        needs(demand("Offline", max_in_flight=23_694, owned=False, num_workers=1), limits)
    assert "--num_workers=2;" in refused.value.remedy and "ulimit -Hn 23758" in refused.value.remedy


def test_what_the_server_of_the_job_needs_is_refused_too_and_both_needs_are_named(demand):
    asked = demand("Offline", max_in_flight=23_694)
    with pytest.raises(LimitTooLow, match="may need 23,758 open files in a process of the server, 20,000") as refused:
        needs(asked, MachineLimits(open_files=20_000))
    assert "11,911 open files in each of 2 processes of the client" in refused.value.cause
    assert "23,758 in a process of the server" in refused.value.cause
    assert "--api-server-count=2" in refused.value.remedy and "--max_in_flight" in refused.value.remedy
    with pytest.raises(LimitTooLow) as hopeless:  # no number of processes would do
        needs(asked, MachineLimits(open_files=64))
    assert "--num_workers" not in hopeless.value.remedy and "--api-server-count" not in hopeless.value.remedy
    spread = demand("Offline", max_in_flight=23_694, argv=["serve", "m", "--api-server-count=2"])
    assert needs(spread, MachineLimits(open_files=20_000)).server_files == 23_694 / 2 + 64
    shared = demand("Offline", max_in_flight=23_694, replicas=["http://a:2"])
    assert needs(shared, MachineLimits(open_files=20_000)).server_files == 23_694 / 2 + 64


def test_spare_connections_count_on_both_sides(demand):
    need = needs(demand(num_workers=3), MANY)
    assert need.client_files == 22 + 32 + FILES_BESIDE
    assert need.server_files == 64 + 3 * 32 + 64
    assert need.ports == 64 + 3 * 32


def test_ports_bound_the_connections_over_tcp_alone(demand):
    few = dataclasses.replace(MANY, local_ports=28_232)
    with pytest.raises(LimitTooLow, match="30,000 connections to a server, the system has 28,232 local ports"):
        needs(demand("Offline", max_in_flight=30_000), few)
    needs(demand("Offline", max_in_flight=30_000, endpoint="unix:///socket"), few)
    needs(demand("Offline", max_in_flight=30_000, replicas=["http://a:2"]), few)


def test_memory_of_the_workers_is_refused_where_it_is_not_free(demand):
    with pytest.raises(LimitTooLow, match="may need 129 MiB of memory, 100 MiB are free"):
        needs(demand("Offline", max_in_flight=64), dataclasses.replace(MANY, memory_bytes=100 * 2**20))
    assert needs(demand("Offline", max_in_flight=64), MANY).memory_bytes == WORKER_BYTES + 2**20


def test_the_highest_rate_is_the_last_that_is_not_refused(demand):
    def at(rate):
        return demand(target_qps=rate, test_query_count=10**6)

    limits = MachineLimits(open_files=4096)
    rate, why = highest_rate(at, limits)
    assert 4090 < needs(at(rate), limits).client_files <= 4096
    with pytest.raises(LimitTooLow, match="open files"):
        needs(at(1.002 * rate), limits)
    assert why.startswith("the Server performance run may need ") and why.endswith(" 4,096 are allowed")
    assert highest_rate(at, MachineLimits()) == (math.inf, "")


def test_a_run_is_refused_before_it_asks_the_server(make_settings, tmp_path):
    """Its own process checks again: its rate is known there."""
    settings = make_settings("http://127.0.0.1:1", "Offline", "performance", max_in_flight=10**9)
    with pytest.raises(LimitTooLow, match="the Offline performance run may need"):
        run(settings, tmp_path / "run")


def test_a_run_where_a_process_may_open_few_files_has_more_workers(make_settings, tmp_path):
    with FakeVllm() as server:
        settings = make_settings(server.endpoint, "Offline", "performance", max_in_flight=256)
        write_record(tmp_path / "settings.json", settings)
        (tmp_path / "user.conf").write_text(settings.user_conf)
        done = subprocess.run(
            [sys.executable, "-m", "cm4vllm.loadgen.process.main", str(tmp_path / "settings.json"), str(tmp_path)],
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (100, 150)),
            capture_output=True,
            text=True,
            check=True,
        )
    ended = json.loads(done.stdout.splitlines()[-1])
    assert [process["name"] for process in ended["client"]["processes"]] == [
        "LoadGen",
        "worker 1",
        "worker 2",
        "worker 3",
    ]
    assert ended["client"]["completed"] == ended["client"]["requests"] > 0


# --- the LoadGen version of each round


ROUND = LoadGenSettings(round="v6.1")


def test_the_loadgen_of_the_running_python_is_used_when_it_is_of_the_round(tmp_path):
    provided = provide(ROUND, tmp_path)
    assert provided.version in ("6.0.16", "6.0.17")
    assert provided.pythonpath == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("present", "fits"), [("6.0.16", True), ("6.1.16", False), (None, False)])
def test_the_round_decides_which_versions_will_do(tmp_path, monkeypatch, capsys, present, fits):
    monkeypatch.setattr(wheel, "_present_version", lambda: present)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if fits:
        assert provide(ROUND, tmp_path).pythonpath == ""
    else:
        with pytest.raises(InstallError, match="mlcommons-loadgen==6.0.17 cannot be installed") as failure:
            provide(ROUND, tmp_path)
        assert "6.0.17" in failure.value.cause
        assert "done" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "installed"),
    [
        ({}, "6.0.17"),
        ({"version": "6.0.16"}, "6.0.16"),
        ({"minimum": "6.0.1"}, "6.0.17"),
        ({"maximum": "6.0.16"}, "6.0.16"),
        ({"minimum": "6.0.16", "maximum": "7"}, "6.0.17"),
    ],
)
def test_a_version_of_the_round_that_is_asked_for_is_installed(asked, installed):
    assert usable_wheel(LoadGenSettings(round="v6.1", **asked)).wheel == installed


@pytest.mark.parametrize("asked", [{"version": "6.0.15"}, {"version": "6.0.18"}, {"minimum": "7"}, {"maximum": "5.1"}])
def test_a_version_of_another_round_is_refused(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(wheel, "run", lambda *_, **__: pytest.fail("something is installed"))
    with pytest.raises(
        UsageError, match=f"no LoadGen of round v6.1 is version.*={next(iter(asked.values()))}"
    ) as error:
        provide(LoadGenSettings(round="v6.1", **asked), tmp_path)
    assert error.value.cause == "the versions from 6.0.16 to 6.0.17 have the seeds of this round"


def test_a_loadgen_with_the_seeds_of_another_round_measures_nothing():
    def require(round_name, version):
        require_seeds(terms(round_name, "llama2-70b-99.9", Scenario.OFFLINE, Mode.PERFORMANCE), version)

    for round_name, version in (("v6.1", "6.0.17"), ("v6.0", "6.0.5"), ("v4.1", "4.1")):
        require(round_name, version)
    with pytest.raises(InstallError, match="LoadGen 6.0.15 has other seeds than those of round v6.1") as error:
        require("v6.1", "6.0.15")
    assert "get,mlperf,inference,loadgen,_r6.1" in error.value.remedy


def test_a_loadgen_that_does_not_load_is_refused(tmp_path, monkeypatch):
    (tmp_path / "mlperf_loadgen.py").write_text("raise ImportError('a library is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InstallError, match="does not load") as failure:
        provide(ROUND, tmp_path)
    assert "a library is missing" in failure.value.cause
