"""Reasons to doubt the client's measurement."""

import subprocess
import sys

import pytest
from msgspec.structs import replace

from cm4vllm.loadgen.process.machine_load import MachineMeter
from cm4vllm.records.client import ClientRecord, FinishReasons, ProcessRecord, SelfCheck, Spread
from cm4vllm.records.doubts import client_doubts, headroom, run_warnings
from cm4vllm.records.metrics import ServerMetrics, Speed
from cm4vllm.records.run import QUOTA, MachineLoad, RunRecord
from cm4vllm.rules import Mode, Scenario, terms

CHECK = SelfCheck(
    workers=1,
    tokens=100,
    queries=500,
    qps=50,
    capacity_qps=500,
    busiest="worker 1",
    busiest_share=0.1,
    server_share=0.1,
    added_ttft=Spread(p50_ms=0.3, p99_ms=2.0, max_ms=9.0),
)


@pytest.fixture
def record(make_settings):
    """Make the record of a run of 100 s in which 5,000 queries of `tokens` tokens were answered."""

    def make(scenario="Server", mode="performance", *, tokens=100, **client):
        client = {
            "requests": 5000,
            "completed": 5000,
            "failed": 0,
            "retries": 0,
            "prompt_tokens": 1,
            "completion_tokens": 5000 * tokens,
            "self_check": CHECK,
            **client,
        }
        return RunRecord(
            notice="",
            settings=make_settings("http://127.0.0.1:1", scenario, mode, target_qps=50),
            settings_sha256="",
            started_at="",
            ended_at="",
            duration_s=100,
            loadgen_version="",
            versions={},
            client=ClientRecord(**client),
            files={},
        )

    return make


def test_headroom_is_what_the_client_can_carry_over_the_load_that_came(record):
    run = record()
    assert headroom(run) == 10
    assert client_doubts(run) == []
    assert headroom(record(completed=10_000)) == 5
    assert headroom(record(tokens=200)) == 5
    # A target that was not reached counts as the load; an Offline accuracy run has none.
    few = {"completed": 500, "completion_tokens": 50_000}
    assert (headroom(record(**few)), headroom(record("Offline", "accuracy", **few))) == (10, 100)
    little = record(self_check=replace(CHECK, capacity_qps=70))
    assert headroom(little) == 1.4
    [doubt] = client_doubts(little)
    assert "1.40 times the load" in doubt


def test_ttft_that_the_client_adds_is_compared_with_one_percent_of_the_limit(record):
    at_limit = replace(CHECK, added_ttft=Spread(p50_ms=1, p99_ms=20, max_ms=99))
    assert client_doubts(record(self_check=at_limit)) == []
    [doubt] = client_doubts(record(self_check=replace(CHECK, added_ttft=Spread(p50_ms=1, p99_ms=20.1, max_ms=99))))
    assert "20.1 ms" in doubt and "2000 ms" in doubt
    slow = replace(CHECK, added_ttft=Spread(p50_ms=1, p99_ms=99, max_ms=99))
    assert client_doubts(record("Offline", self_check=slow)) == []


def test_streams_that_come_whole_make_the_latencies_doubtful(record):
    assert client_doubts(record(at_once=2500)) == []
    [doubt] = client_doubts(record(at_once=2501))
    assert "2501 of 5000 answers came whole" in doubt and "proxy_buffering" in doubt


@pytest.mark.parametrize(("scenario", "flag"), [("Server", "--server_target_qps"), ("Offline", "--max_in_flight")])
def test_a_connection_that_waited_a_second_is_doubtful(record, scenario, flag):
    assert client_doubts(record(scenario, longest_connect_s=0.89)) == []
    [doubt] = client_doubts(record(scenario, longest_connect_s=1.04, retries=3))
    assert "took 1.0 s to open (3 requests were sent again)" in doubt and flag in doubt
    assert client_doubts(record(scenario, "accuracy", longest_connect_s=1.04)) == []


@pytest.mark.parametrize("lag", ["issue_lag", "loop_lag"])
def test_a_client_that_was_late_during_the_run_is_doubtful(record, lag):
    process = ProcessRecord(
        name="worker 1", cpu_s=1, wall_s=100, peak_memory_mib=40, **{lag: Spread(p50_ms=0.1, p99_ms=33.3, max_ms=50)}
    )
    [doubt] = client_doubts(record(processes=[process]))
    assert "33.3 ms late" in doubt


LOAD = MachineLoad(processors=2, wall_s=100, busy_s=150, stolen_s=5, own_s=140.1)


def test_a_machine_that_others_used_is_doubtful(record):
    quiet = replace(record(), machine_load=LOAD)
    assert client_doubts(quiet) == []
    [doubt] = client_doubts(replace(quiet, machine_load=replace(LOAD, own_s=100)))
    assert "other processes used 25% of this machine's 2 processors" in doubt
    [doubt] = client_doubts(replace(quiet, machine_load=replace(LOAD, stolen_s=30)))
    assert "the hypervisor gave 15%" in doubt
    accuracy = replace(record("Offline", "accuracy"), machine_load=replace(LOAD, own_s=0, stolen_s=99))
    assert client_doubts(accuracy) == client_doubts(replace(quiet, machine_load=replace(LOAD, own_s=None))) == []
    assert run_warnings(replace(quiet, server_metrics=METRICS)) == []


BURN = "import time\nwhile time.process_time() < 0.25: pass\n"


@pytest.mark.parametrize("owned", [True, False])
def test_the_work_of_the_server_and_of_the_client_is_their_own(record, owned):
    # It works between two lines that it reads, and says when it has: neither before the meter began nor after it read.
    work = f"input()\n{BURN}print(flush=True)\ninput()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", work], stdin=pipe, stdout=pipe, bufsize=0) as supervisor:
        server = replace(record().settings.server, owned=owned, supervisor_pid=supervisor.pid, argv=["vllm"])
        meter = MachineMeter(server)
        supervisor.stdin.write(b"\n")
        subprocess.run([sys.executable, "-c", BURN], check=True)
        assert supervisor.stdout.readline()
        load = meter.load()
        supervisor.communicate(b"\n")
    assert load.wall_s >= 0.25
    assert load.busy_s >= 0.2
    if not owned:
        assert (load.own_s, load.others) == (None, None)
        return
    assert 0.45 <= load.own_s <= 1.5
    assert 0 <= load.others < 1
    assert 0 <= load.stolen < 1


def test_ray_starts_workers_that_nobody_here_knows(record):
    server = replace(
        record().settings.server, owned=True, supervisor_pid=1, argv=["vllm", "--distributed-executor-backend", "ray"]
    )
    assert MachineMeter(server).load().own_s is None


def test_a_kernel_that_says_nothing_gives_no_load(record, monkeypatch):
    monkeypatch.setattr("cm4vllm.hardware.machine_samples.processor_seconds", lambda: None)
    assert MachineMeter(record().settings.server).load() is None


def test_a_quota_that_was_used_up_is_a_reason_to_doubt_the_run(record):
    counters = {f"{QUOTA} of 0.5 CPUs (times)": 19.0, f"{QUOTA} of 0.5 CPUs": 2.5}
    load = MachineLoad(processors=2, wall_s=100, busy_s=10, stolen_s=0, own_s=10, throttled=counters)
    (doubt,) = client_doubts(replace(record(), machine_load=load))
    assert "slowed down by the CPU quota of 0.5 CPUs 19 times, its threads for 2.5 s" in doubt and "--cpus" in doubt


# --- warnings after a run, each with its cause


METRICS = ServerMetrics(
    samples=9,
    interval_s=2.0,
    missed=0,
    running_max=9,
    running_mean=5.0,
    waiting_max=3,
    waiting_mean=1.0,
    kv_cache_usage_max=0.97,
    preemptions=0,
    prefix_cache_hits=0,
    cached_prompt_tokens=0,
    prompt_tokens=99,
    generation_tokens=99,
)


SPEED = Speed(
    **{"base_ms": 4.0, "per_request_ms": 0.1, "low": 90.0, "high": 110.0, "parts": 12, "scatter": 0.02},
    **{"slowest": 0.69, "slowest_from_s": 330.0, "slowest_to_s": 347.0},
)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"server_metrics": replace(METRICS, preemptions=12)}, ["preempted 12 requests", "97% full", "--max_num_seqs"]),
        ({"server_metrics": replace(METRICS, prefix_cache_hits=512)}, ["512 prompt tokens from a cache"]),
        (
            {"machine_load": replace(LOAD, throttled={"GPU 0: its temperature": 12.3})},
            ["GPU 0 was slowed down by its temperature for 12.3 s", "cooling"],
        ),
        (
            {"machine_load": replace(LOAD, throttled={"a processor: its temperature (times)": 7.0})},
            ["a processor was slowed down by its temperature 7 times"],
        ),
        (
            {"machine_load": replace(LOAD, throttled={"GPU 1: its power limit": 99.0})},
            ["GPU 1 was slowed down by its power limit for 99.0 s", "nvidia-smi"],
        ),
        (
            {"server_metrics": replace(METRICS, speed=SPEED)},
            ["from 330 to 347 s", "31 % fewer tokens/s", "the host of a virtual machine"],
        ),
        ({"machine_load": replace(LOAD, own_s=100)}, ["other processes used 25%"]),
    ],
)
def test_what_was_seen_during_the_run_is_said_with_its_cause(record, fields, words):
    (warning,) = run_warnings(replace(full_length(record()), **fields))
    for word in words:
        assert word in warning


def full_length(run):
    return replace(run, settings=replace(run.settings, rehearsal=False))


@pytest.mark.parametrize(
    ("fields", "is_said"),
    [
        ({"machine_load": replace(LOAD, own_s=100)}, False),
        ({"machine_load": replace(LOAD, stolen_s=30)}, False),
        ({"machine_load": replace(LOAD, throttled={"GPU 1: its power limit": 99.0})}, False),
        ({"server_metrics": replace(METRICS, preemptions=12)}, True),
        ({"server_metrics": replace(METRICS, prefix_cache_hits=512)}, True),
    ],
)
def test_a_rehearsal_warns_of_defects_and_not_of_inexact_figures(record, fields, is_said):
    run = replace(record(), **fields)
    assert run.settings.rehearsal
    assert bool(run_warnings(run)) is is_said
    assert run_warnings(full_length(run))


def test_a_doubt_without_a_remedy_stands_on_the_page_alone(record):
    run = full_length(record(self_check=None))
    assert client_doubts(run) == ["the client was not checked before the run"]
    assert run_warnings(run) == []


def test_more_answers_at_their_greatest_length_than_the_mean_allows_are_told(record):
    """llama2-70b-99 has 294 tokens per sample of 1024 at most: at most 32 % of the answers can have them all."""
    run = record()
    longer = replace(
        run.settings, max_tokens=1024, terms=terms("v6.0", "llama2-70b-99", Scenario.SERVER, Mode.PERFORMANCE)
    )
    run = replace(run, settings=longer)
    assert not any("finish_reason" in text for text in run_warnings(ended(run, stop=69, length=31)))
    (warning,) = [text for text in run_warnings(ended(run, stop=60, length=40)) if "finish_reason" in text]
    assert "40 of 100 answers ended at their greatest length of 1,024 tokens" in warning


def ended(run, *, stop, length):
    return replace(run, client=replace(run.client, finish_reasons=FinishReasons(stop=stop, length=length)))
