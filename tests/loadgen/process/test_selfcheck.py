"""The self-check before a run: the real client, against the server in memory."""

import resource
import sys
import time
from functools import partial

import msgspec
import pytest
from fake_vllm import FakeVllm, prompt
from msgspec.structs import replace

from cm4vllm.common.records import read_sample_file
from cm4vllm.hardware.machine_samples import MachineSample, read_machine_samples
from cm4vllm.loadgen.client.wire import Sampling, completion_body
from cm4vllm.loadgen.process import selfcheck
from cm4vllm.loadgen.process.machine_load import NodeSamples, nodes_sampled
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.loadgen.process.selfcheck import expected_tokens, in_words, self_check
from cm4vllm.records.metrics import GPU_SAMPLES_FILE, GpuSample, GpusSample
from cm4vllm.records.server import NodeRecord, ServerRecord
from cm4vllm.rules import Mode, Scenario, terms
from cm4vllm.serving.clusters.launchers import LocalLauncher, launcher_of


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


def test_more_workers_are_taken_where_one_is_too_few_and_there_are_processors(checked, monkeypatch):
    monkeypatch.setattr(selfcheck, "usable_processors", lambda: 4)
    monkeypatch.setattr(selfcheck, "HEADROOM", 1e9)
    _, check = checked("Server")
    assert check.workers > 1 or not check.busiest.startswith("worker")
    # It begins with those that the machine's limits ask for; a number that is given is the number.
    assert checked("Server", least=3)[1].workers >= 3
    assert checked("Server", num_workers=2)[1].workers == 2


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


def test_offline_the_server_in_memory_gets_no_more_connections_than_it_may_have(checked):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, hard))
    try:
        assert checked("Offline", max_in_flight=400, num_workers=8)[1].queries >= 500
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- samples of each node of a server: by a program that the launcher runs there, which ends with its standard input


def server(*nodes: NodeRecord) -> ServerRecord:
    return ServerRecord(endpoint="", model_name="m", max_model_len=1, version="", owned=True, nodes=list(nodes))


def test_each_node_is_sampled_through_the_block(tmp_path):
    with nodes_sampled(server(), tmp_path, LocalLauncher(("n1", "n2"))) as nodes:
        deadline = time.monotonic() + 20
        while not all(path.stat().st_size for path in nodes.files):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)  # the kernel counts in steps of 10 ms
    assert [path.name for path in nodes.files] == ["machine_metrics-1.jsonl", "machine_metrics-2.jsonl"]
    assert all(len(read_machine_samples(path)) >= 2 for path in nodes.files)
    loads = nodes.loads()
    assert len(loads) == 2
    assert all(0 <= load.busy <= 1.1 and load.own is None and load.wall_s > 0 for load in loads)


class Silent(LocalLauncher):
    def words(self, node, program):
        return [sys.executable, "-c", "print('Welcome')"] if node == "n2" else list(program)


def test_a_node_that_gives_no_samples_is_named(tmp_path, capsys):
    with nodes_sampled(server(), tmp_path, Silent(("n1", "n2"))) as nodes:
        time.sleep(0.5)
    nodes.loads()
    assert "node 2 of the server gave no samples" in capsys.readouterr().out


def test_the_gpus_of_all_nodes_are_numbered_through(tmp_path):
    files = []
    for node in (1, 2):
        gpus = [GpuSample(index=place, name="H100", power_w=100.0 * node + place) for place in (0, 1)]
        samples = [MachineSample(at_s=at, processors=2, gpus=gpus) for at in (0.0, 2.0, 4.0)]
        files.append(tmp_path / f"{node}.jsonl")
        lines = b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples[: 4 - node])
        files[-1].write_bytes(b"Last login: today\n" + lines)
    NodeSamples(tuple(files)).write_gpus(tmp_path / GPU_SAMPLES_FILE)
    looks = read_sample_file(tmp_path / GPU_SAMPLES_FILE, GpusSample)
    assert [look.at_s for look in looks] == [0.0, 2.0]
    assert [(gpu.index, gpu.name, gpu.power_w) for gpu in looks[0].gpus] == [
        (0, "H100, node 1", 100.0),
        (1, "H100, node 1", 101.0),
        (2, "H100, node 2", 200.0),
        (3, "H100, node 2", 201.0),
    ]


def test_only_the_nodes_of_other_machines_are_sampled(tmp_path):
    assert launcher_of(server(NodeRecord(name="node1", launcher="local"))) is None
    for kind in ("ssh", "slurm"):
        launcher = launcher_of(server(*(NodeRecord(name=name, launcher=kind) for name in ("a", "b"))))
        assert launcher is not None and (launcher.name, launcher.nodes) == (kind, ("a", "b"))
    with nodes_sampled(server(), tmp_path) as nodes:
        pass
    assert nodes.loads() == [] and not list(tmp_path.iterdir())
