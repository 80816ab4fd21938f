"""Worker processes in whole runs: their number, their servers, and the end of a run when one of them ends."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from fake_vllm import Behaviour, FakeVllm, Fault, expected_tokens, prompt
from msgspec.structs import replace

from cm4vllm.common.errors import RunFailed, ServerUnreachable
from cm4vllm.loadgen.client.wire import Sampling, completion_body
from cm4vllm.loadgen.client.workers import Workers, worker_settings
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_accuracy_log
from cm4vllm.records.server import Api

SENT = {index: expected_tokens(prompt(index), 128, 2) for index in range(64)}


def answers_in_the_log(folder):
    return {index: tokens.tolist() for index, tokens, _ in read_accuracy_log(folder / ACCURACY_LOG)}


def served_by(settings, **server):
    return replace(settings, server=replace(settings.server, **server))


def test_several_workers_give_the_same_log(tmp_path, make_settings):
    with FakeVllm() as server:
        record = run(make_settings(server.endpoint, "Server", "accuracy", num_workers=3), tmp_path / "run")
    assert answers_in_the_log(tmp_path / "run") == SENT
    assert [process.name for process in record.client.processes] == ["LoadGen", "worker 1", "worker 2", "worker 3"]
    assert record.client.requests == record.client.completed == 64


@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_several_servers_share_the_requests(tmp_path, make_settings, scenario):
    # All requests are sent before many are answered: else a server that stands still for a moment gets few.
    with FakeVllm(Behaviour(token_delay_s=0.005)) as first, FakeVllm(Behaviour(token_delay_s=0.005)) as second:
        settings = make_settings(first.endpoint, scenario, "accuracy", target_qps=2000)
        run(served_by(settings, replicas=[second.endpoint]), tmp_path / "run")
    assert answers_in_the_log(tmp_path / "run") == SENT
    assert len(first.bodies) + len(second.bodies) == 64
    assert min(len(first.bodies), len(second.bodies)) > 16


def test_one_of_several_servers_that_cannot_be_reached_is_named(tmp_path, make_settings):
    with FakeVllm() as first, FakeVllm() as gone:
        gone.stop()
        settings = served_by(make_settings(first.endpoint, "Offline", "accuracy"), replicas=[gone.endpoint])
        with pytest.raises(ServerUnreachable, match=f"nothing answers at {gone.endpoint}"):
            run(settings, tmp_path / "run")


def test_each_worker_begins_with_another_server(make_settings):
    settings = served_by(make_settings("http://a:1", "Server", "accuracy"), replicas=["http://b:1"])
    assert [worker.endpoints[0] for worker in worker_settings(settings, 3)] == [
        "http://a:1",
        "http://b:1",
        "http://a:1",
    ]


def test_the_bound_of_requests_in_flight_is_shared(make_settings):
    settings = make_settings("http://a:1", "Offline", "accuracy", max_in_flight=9)
    assert [worker.max_in_flight for worker in worker_settings(settings, 2)] == [5, 5]


@pytest.mark.parametrize(("way", "scenario"), [("tls", "Offline"), ("unix", "Server"), ("generate", "Offline")])
def test_every_way_to_a_server_gives_the_same_log(tmp_path, make_settings, certificate, scenario, way):
    behaviour = Behaviour(
        certificate=str(certificate) if way == "tls" else "", unix=str(tmp_path / "socket") if way == "unix" else ""
    )
    with FakeVllm(behaviour) as server:
        settings = served_by(
            make_settings(server.endpoint, scenario, "accuracy"),
            ca_file=behaviour.certificate,
            api=Api.GENERATE if way == "generate" else Api.COMPLETIONS,
        )
        run(settings, tmp_path / "run")
    assert answers_in_the_log(tmp_path / "run") == SENT
    assert set(server.paths) == {settings.server.api.path}


class Receiver:
    """Notes what it is given in order; the first call takes long, so that much has come before the next."""

    def __init__(self, ends):
        self.seen = []
        self._ends = ends
        self.over = threading.Event()
        self.errors = []

    def first_tokens(self, answers):
        self._note("first", [key for key, _, _ in answers])

    def completed(self, answers):
        self._note("end", [key for key, *_ in answers])

    def failed(self, key, cause, *, first_token_seen):
        self._note("end" if first_token_seen else "end without first", [key])

    def _note(self, event, keys):
        if not self.seen:
            time.sleep(0.3)
        self.seen += [(event, key) for key in keys]
        self._ends -= sum(event != "first" for _ in keys)
        if self._ends <= 0:
            self.over.set()

    def broken(self, error):
        self.errors.append(error)
        self.over.set()


@contextlib.contextmanager
def one_worker(settings, receiver):
    sampling = Sampling("tiny", settings.max_tokens, settings.min_tokens, settings.stream_interval)
    library = SampleLibrary([prompt(i) for i in range(64)], lambda ids: completion_body(sampling, ids))
    library.load(range(64))
    workers = Workers(worker_settings(settings, 1), library.descriptor, receiver, receiver.broken)
    try:
        yield workers, [(key, *library.records[key]) for key in range(64)]
    finally:
        workers.close()


def test_a_first_token_is_reported_before_the_end_of_its_query(make_settings):
    """LoadGen 6.0.17 reads past its table of first tokens when it learns of the end first, and dies."""
    behaviour = Behaviour(fault=lambda n: Fault.ERROR_EVENT if n % 2 else Fault.NONE)
    receiver = Receiver(64)
    with (
        FakeVllm(behaviour) as server,
        one_worker(make_settings(server.endpoint, "Server", "accuracy"), receiver) as (workers, queries),
    ):
        workers.issue(queries)
        assert receiver.over.wait(20)
    assert receiver.errors == []
    assert sorted(receiver.seen) == [(event, key) for event in ("end", "first") for key in range(64)]
    assert [key for key in range(64) if receiver.seen.index(("first", key)) > receiver.seen.index(("end", key))] == []
    assert 0 < workers.failures.total() < 64


def test_what_cannot_be_read_of_a_worker_ends_the_run_and_does_not_hang_it(make_settings):
    receiver = Receiver(64)
    receiver.completed = None
    with (
        FakeVllm() as server,
        one_worker(make_settings(server.endpoint, "Server", "accuracy"), receiver) as (workers, queries),
    ):
        workers.issue(queries)
        assert receiver.over.wait(20)
    [error] = receiver.errors
    assert "cannot read the messages of its workers" in error.what


def workers_below(pid):
    return [
        child
        for child in psutil.Process(pid).children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "cm4vllm.loadgen.client.worker" in " ".join(child.cmdline())
    ]


@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_a_worker_that_dies_fails_the_run_with_the_cause(tmp_path, make_settings, scenario):
    def kill_one():
        while len(server.bodies) < 20:
            time.sleep(0.02)
        os.kill(workers_below(os.getpid())[1].pid, signal.SIGKILL)

    begin = time.monotonic()
    with FakeVllm(Behaviour(token_delay_s=1)) as server:  # the run is not over when a worker is killed
        killer = threading.Thread(target=kill_one)
        killer.start()
        with pytest.raises(RunFailed, match="of the client ended unexpectedly: killed by SIGKILL") as failure:
            run(
                make_settings(server.endpoint, scenario, "performance", test_query_count=5000, num_workers=2),
                tmp_path / "run",
            )
        killer.join()
    assert "of its queries were open" in failure.value.cause
    assert not (tmp_path / "run").exists()
    assert workers_below(os.getpid()) == []
    assert time.monotonic() - begin < 40


def test_what_the_client_did_during_the_run_is_recorded(tmp_path, make_settings):
    with FakeVllm() as server:
        record = run(make_settings(server.endpoint, "Server", "performance"), tmp_path / "run")
    loadgen, worker = record.client.processes
    assert loadgen.issue_lag is None and loadgen.loop_lag is None
    assert worker.issue_lag is not None and 0 < worker.issue_lag.p50_ms <= worker.issue_lag.p99_ms
    assert worker.loop_lag is not None
    assert worker.gc_pauses == 0
    assert 0 < worker.cpu_s < worker.wall_s
    assert record.client.reported_tokens == record.client.completion_tokens
    assert record.client.connections >= 1


def test_a_worker_starts_without_numpy():
    """Its start and its memory count for each run, and it computes nothing."""
    code = "import sys, cm4vllm.loadgen.client.worker; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
