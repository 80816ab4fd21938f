"""Whole runs: the real LoadGen in its process, against a server on loopback."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from fake_vllm import Behaviour, FakeVllm, Fault, expected_tokens, http, prompt
from msgspec.structs import replace

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import DatasetError, RunFailed, ServerDied, ServerStuck, ServerUnreachable, ServerUnsuitable
from cm4vllm.common.records import read_record
from cm4vllm.loadgen.process import process_monitor, runner
from cm4vllm.loadgen.process.messages import FirstFailure
from cm4vllm.loadgen.process.process_monitor import server_died, server_stuck
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.client import FinishReasons
from cm4vllm.records.logs.detail_log import read_detail_log
from cm4vllm.records.logs.figures import figures, metric_names
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, DETAIL_LOG, read_accuracy_log, read_performance
from cm4vllm.records.run import FAILURE_FILE, FailureRecord, RunRecord
from cm4vllm.records.server import NodeRecord
from cm4vllm.serving.supervision import heartbeat

SRC = Path(__file__).parents[3] / "src"
METRICS = Path(__file__).parents[2] / "serving/recorded/metrics-after.txt"


def answers_in_the_log(folder):
    return {index: tokens.tolist() for index, tokens, _ in read_accuracy_log(folder / ACCURACY_LOG)}


#: Of a request that meets both faults a third is sent; with a third fault it would fail.
FAULTS = {3: Fault.STATUS_500, 33: Fault.CLOSE_BEFORE}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory, make_settings):
    """The folder of an accuracy run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with FakeVllm() as server:
        run(make_settings(server.endpoint, "Offline", "accuracy"), folder)
    return folder


def test_a_rehearsal_is_marked_in_its_record_and_in_user_conf(whole_run):
    record = read_record(whole_run / "run.json", RunRecord)
    assert record.notice == REHEARSAL_NOTICE
    assert "rehearsal" in (whole_run / "user.conf").read_text()
    assert record.loadgen_version.startswith("6.0.1")
    assert (
        sorted(p.name for p in whole_run.iterdir())
        == (
            "client_samples.npy console.log mlperf.conf mlperf_log_accuracy.json mlperf_log_detail.txt "
            "mlperf_log_summary.txt run.json user.conf"
        ).split()
    )
    assert answers_in_the_log(whole_run) == {i: expected_tokens(prompt(i), 128, 2) for i in range(64)}


@pytest.mark.parametrize(
    ("scenario", "behaviour", "more"),
    [
        ("Offline", Behaviour(tokens_per_chunk=16), {"stream_interval": 16}),
        ("SingleStream", Behaviour(), {"benchmark": "llama3.1-8b-edge"}),
        ("Server", Behaviour(split=997, fault=lambda n: FAULTS.get(n, Fault.NONE)), {}),
    ],
    ids=["several tokens a chunk", "one after the other", "split anywhere, and faults"],
)
def test_the_accuracy_log_holds_exactly_the_tokens_that_the_server_sent(
    tmp_path, make_settings, scenario, behaviour, more
):
    with FakeVllm(behaviour) as server:
        record = run(make_settings(server.endpoint, scenario, "accuracy", **more), tmp_path / "run")
    assert server.bodies[0]["stream_interval"] == 16
    sent = {index: expected_tokens(prompt(index), 128, 2) for index in range(64)}
    assert answers_in_the_log(tmp_path / "run") == sent
    assert record.client.completed == record.client.requests == 64
    assert record.client.completion_tokens == sum(map(len, sent.values()))
    assert record.client.prompt_tokens == sum(len(prompt(index)) for index in range(64))
    assert record.client.failed == 0
    # On a connection that had been idle, what was closed before an answer is sent again and is no retry.
    assert record.client.retries <= len(server.bodies) - 64
    # Why answers ended is recorded, too.
    whole = sum(len(tokens) == 128 for tokens in sent.values())
    assert record.client.finish_reasons == FinishReasons(stop=64 - whole, length=whole)
    assert read_record(tmp_path / "run" / "run.json", RunRecord).client.finish_reasons == record.client.finish_reasons


@pytest.fixture
def niceness(monkeypatch):
    """The priorities that servers were given: a server gives way only where latency is measured."""
    given = []
    monkeypatch.setattr(runner, "give_way", lambda server: given.append(server.niceness))
    return given


def test_a_server_run_measures_what_the_server_does(tmp_path, make_settings, niceness):
    with FakeVllm(Behaviour(token_delay_s=0.005)) as server:
        run(make_settings(server.endpoint, "Server", "performance", target_qps=40, niceness=10), tmp_path / "run")
    assert niceness == [10]
    result = read_performance(tmp_path / "run")
    assert result.figures["queries"] == result.samples == 64
    assert result.errors == 0
    # An answer takes 65 x 5 ms on average: a busy machine makes it slower, but its first token still comes well before.
    assert result.figures["tpot_mean"] > 4.9
    assert result.figures["latency_mean"] - result.figures["ttft_mean"] > 32 * 4.9
    assert result.target_qps == 40


def test_an_offline_run_keeps_its_requests_in_flight_below_the_bound(tmp_path, make_settings, niceness, monkeypatch):
    # An audit.config in the working directory has no effect.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audit.config").write_text("*.*.mode = 2\n*.*.accuracy_log_sampling_target = 100\n")
    more = {"max_in_flight": 8, "test_query_count": 256, "niceness": 10}
    with FakeVllm(Behaviour(token_delay_s=0.0005)) as server:
        record = run(make_settings(server.endpoint, "Offline", "performance", **more), tmp_path / "run")
    assert list(read_accuracy_log(tmp_path / "run" / ACCURACY_LOG)) == []
    assert niceness == [record.settings.server.niceness] == [0]
    assert server.most_in_flight == 8
    assert server.connections <= 10  # one more looks at start whether anything answers, another at the metrics
    result = read_performance(tmp_path / "run")
    assert result.samples == record.client.completed
    assert "ttft_p99" not in result.figures
    tokens = result.figures["tokens_per_second"] / result.samples_per_second * result.samples
    assert tokens == pytest.approx(record.client.completion_tokens, rel=1e-4)


def test_in_a_single_stream_each_query_follows_the_answer_before_it(tmp_path, make_settings):
    with FakeVllm() as server:
        settings = make_settings(server.endpoint, "SingleStream", "performance", benchmark="llama3.1-8b-edge")
        record = run(settings, tmp_path / "run")
    assert server.most_in_flight == 1
    result = read_performance(tmp_path / "run")
    assert (result.scenario, result.errors, result.valid) == ("SingleStream", 0, True)
    assert result.samples == result.figures["queries"] == record.client.completed == 64
    assert result.target_qps == pytest.approx(100)
    measured = figures(read_detail_log(tmp_path / "run" / DETAIL_LOG))
    assert metric_names("SingleStream", tokens=True) == ("latency_p90",)
    assert measured["latency_p90"].value > measured["ttft_p90"].value > 0


@pytest.mark.parametrize(
    ("scenario", "fault", "words"),
    [
        ("Offline", Fault.STATUS_500, "HTTP status 500: made to fail"),
        ("Server", Fault.STALL_THEN_CLOSE, "in the middle of an answer"),
    ],
)
def test_a_request_that_stays_unanswered_fails_the_run_and_leaves_an_earlier_one_alone(
    tmp_path, make_settings, whole_run, scenario, fault, words
):
    shutil.copytree(whole_run, tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    begin = time.monotonic()
    # At 100 queries/s the Server run would last 50 s: it must not go on to its end.
    queries = 5000 if scenario == "Server" else 500
    with (
        FakeVllm(Behaviour(fault=lambda n: fault if n >= 40 else Fault.NONE)) as server,
        pytest.raises(RunFailed, match="requests of the .* run failed") as failure,
    ):
        run(make_settings(server.endpoint, scenario, "performance", test_query_count=queries), tmp_path / "run")
    assert words in failure.value.cause
    assert failure.value.exit_code == 50
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert not (tmp_path / "run.failed" / "run.json").exists()
    seen = read_record(tmp_path / "run.failed" / FAILURE_FILE, FailureRecord)
    assert (seen.exit_code, seen.client.failed) == (50, sum(seen.client.failures.values()))
    assert seen.client.completed > 5 and any(words in cause for cause in seen.client.failures)
    assert time.monotonic() - begin < 40


def rejection(message):
    """Return the body with which vLLM 0.32.0 answers a request above a limit of its admission control."""
    error = {"message": message, "type": "Service Unavailable", "param": None, "code": 503}
    return msgspec.json.encode({"error": error})


QUEUE = "The engine is currently busy and cannot accept new requests."
TOKENS = "The engine has reached its prefill token backlog limit."


@pytest.mark.parametrize(
    ("scenario", "message", "option", "fewer"),
    [
        ("Offline", QUEUE, "--max-num-queued-reqs", "--max_in_flight"),
        ("Server", TOKENS, "--max-num-queued-tokens", "--server_target_qps"),
        ("Server", QUEUE, "--max-num-queued-reqs", "--server_target_qps"),
    ],
)
def test_requests_that_admission_control_rejects_name_its_limit(
    tmp_path, make_settings, scenario, message, option, fewer
):
    body = rejection(message)
    # vLLM checks twice: the second time a stream has begun, and the error is an event of it.
    event = http(b"data: %b\n\ndata: [DONE]\n\n" % body, head=b"content-type: text/event-stream\r\n")
    answer = event if scenario == "Server" and message == QUEUE else http(body, "503 Service Unavailable")
    with (
        FakeVllm(Behaviour(raw=lambda number, _: answer if number >= 40 else None)) as server,
        pytest.raises(RunFailed) as failure,
    ):
        run(make_settings(server.endpoint, scenario, "performance", test_query_count=500), tmp_path / "run")
    assert failure.value.cause.splitlines()[-1] == f"the server's admission control rejects requests ({option})"
    assert message[:60] in failure.value.cause
    assert f"a higher {option}, or without a limit" in failure.value.remedy and fewer in failure.value.remedy


def test_a_detail_log_that_is_truncated_during_the_run_leaves_no_record(tmp_path, make_settings):
    truncated = []

    def truncate():
        for log in tmp_path.rglob(DETAIL_LOG):
            if not truncated and log.stat().st_size > 1000:
                os.truncate(log, 500)
                truncated.append(log)

    # The run does not end before that.
    behaviour = Behaviour(held=lambda number, _: number >= 60 and not truncated)
    with FakeVllm(behaviour) as server, pytest.raises(RunFailed) as failure:
        run(make_settings(server.endpoint, "Server", "performance", target_qps=50), tmp_path / "run", alive=truncate)
    assert truncated and DETAIL_LOG in failure.value.what
    assert not (tmp_path / "run").exists()


def test_a_server_that_ends_is_named_as_the_cause(tmp_path, make_settings):
    server = FakeVllm(Behaviour(token_delay_s=0.01))
    with server:
        settings = make_settings(server.endpoint, "Server", "performance", test_query_count=5000)
        begin = time.monotonic()

        def alive():
            if time.monotonic() - begin > 1.5 and server.bodies:
                server.stop()
                return "the last line of its log"
            return None

        with pytest.raises(ServerDied) as failure:
            run(settings, tmp_path / "run", alive=alive)
    assert failure.value.cause == "the last line of its log"
    assert time.monotonic() - begin < 40
    assert not (tmp_path / "run").exists()


def test_a_server_of_our_own_whose_end_is_seen_late_is_still_the_cause(tmp_path, make_settings, monkeypatch):
    monkeypatch.setattr(process_monitor, "DYING_S", 30.0)  # this machine may stand still for longer than usual
    with FakeVllm() as server:
        settings = make_settings(server.endpoint, "Server", "performance")
    settings = replace(settings, server=replace(settings.server, owned=True))
    looks = iter(range(100))

    def alive():  # the supervisor needs a moment to see the last process of its server go
        return "killed by SIGKILL" if next(looks) > 5 else None

    with pytest.raises(ServerDied) as failure:
        run(settings, tmp_path / "run", alive=alive)
    assert failure.value.cause == "killed by SIGKILL"


def test_of_several_servers_or_nodes_the_log_of_the_one_that_ended_is_named(make_settings):
    settings = make_settings("http://a", "Server", "performance")
    member = replace(settings.server, endpoint="http://b", owned=True, log="/results/replica-2/server.log")
    settings = replace(
        settings,
        server=replace(settings.server, owned=True, log="/results/server.log", replicas=["http://b"], members=[member]),
    )
    for make in (server_died, server_stuck):
        assert "its whole log: /results/replica-2/server.log" in make(settings, "the server at http://b: why").remedy
        assert "its whole log: /results/server.log" in make(settings, "why").remedy
    nodes = [NodeRecord(name=name, launcher="ssh", log=f"/results/server-{name}.log") for name in ("n1", "n2")]
    settings = replace(settings, server=replace(settings.server, log=nodes[0].log, nodes=nodes))
    assert "its whole log: /results/server-n2.log" in server_died(settings, "on the node n2: killed").remedy


def test_a_server_that_lives_and_does_not_work_ends_the_run(tmp_path, make_settings, monkeypatch):
    monkeypatch.setattr(heartbeat, "STANDSTILL_LOOKS", 1)
    behaviour = Behaviour(fault=lambda n: Fault.STALL if n >= 40 else Fault.NONE, metrics=METRICS.read_text)
    begin = time.monotonic()
    with FakeVllm(behaviour) as server, pytest.raises(ServerStuck, match="run is INVALID") as failure:
        run(make_settings(server.endpoint, "Server", "performance"), tmp_path / "run")
    assert "no progress" in failure.value.cause
    assert time.monotonic() - begin < 30
    assert not (tmp_path / "run").exists()
    assert read_record(tmp_path / "run.failed" / FAILURE_FILE, FailureRecord).exit_code == ServerStuck.exit_code


def test_a_loadgen_process_that_crashes_leaves_how_where_and_what_had_failed_before(
    tmp_path, make_settings, monkeypatch
):
    take = process_monitor._message_of

    def take_and_crash(line, log, run):  # at once: a second after the first failure the process ends by itself
        message = take(line, log, run)
        if isinstance(message, FirstFailure):
            children = psutil.Process().children()
            [process] = [child for child in children if "cm4vllm.loadgen.process.main" in child.cmdline()]
            process.send_signal(signal.SIGSEGV)
        return message

    monkeypatch.setattr(process_monitor, "_message_of", take_and_crash)
    behaviour = Behaviour(fault=lambda n: Fault.STATUS_400 if n == 19 else Fault.NONE)
    with (
        FakeVllm(behaviour) as server,
        pytest.raises(RunFailed, match="the LoadGen process ended unexpectedly: killed by SIGSEGV") as failure,
    ):
        run(make_settings(server.endpoint, "Server", "performance", test_query_count=5000), tmp_path / "run")
    assert "a request had failed before: HTTP status 400: made to fail" in failure.value.cause
    assert "Segmentation fault" in failure.value.cause
    assert "/cm4vllm/loadgen/" in failure.value.cause  # the stack of the thread that got the signal
    record = read_record(tmp_path / "run.failed" / FAILURE_FILE, FailureRecord)
    assert record.cause == failure.value.cause


def test_a_server_that_is_gone_fails_fast(tmp_path, make_settings):
    with FakeVllm() as server:
        settings = make_settings(server.endpoint, "Server", "performance")
    begin = time.monotonic()
    with pytest.raises(ServerUnreachable, match=f"nothing answers at {settings.server.endpoint}"):
        run(settings, tmp_path / "run")
    assert time.monotonic() - begin < 40


def test_a_context_that_is_too_short_is_refused_before_the_run(tmp_path, make_settings):
    with pytest.raises(ServerUnsuitable, match="takes 169 tokens a request, the run needs 170"):
        make_settings("http://127.0.0.1:1", "Offline", "accuracy", max_model_len=169)
    make_settings("http://127.0.0.1:1", "Offline", "accuracy", max_model_len=170)


PARENT = """
import sys, msgspec
from pathlib import Path
from cm4vllm.records.run import RunSettings
from cm4vllm.loadgen.process.runner import run
run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=RunSettings), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_the_loadgen_process_ends_with_its_parent(tmp_path, make_settings, signum):
    with FakeVllm(Behaviour(token_delay_s=0.01)) as server:
        settings = make_settings(server.endpoint, "Server", "performance", test_query_count=5000)
        (tmp_path / "s.json").write_bytes(msgspec.json.encode(settings))
        parent = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PARENT), tmp_path / "s.json", tmp_path / "run"],
            env={**os.environ, "PYTHONPATH": str(SRC)},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while len(server.bodies) < 5:
            assert parent.poll() is None
            time.sleep(0.05)
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) == 2  # LoadGen and a worker
        parent.send_signal(signum)
        parent.wait(30)
        assert not psutil.wait_procs(children, timeout=30)[1]
    assert not (tmp_path / "run").exists()


def test_a_dataset_that_has_changed_or_is_missing_is_refused(tmp_path, make_settings):
    with FakeVllm() as server:
        settings = make_settings(server.endpoint, "Offline", "accuracy")
        changed = tmp_path / "dataset.json"
        changed.write_text(Path(settings.dataset.path).read_text() + " ")
        for path, words in ((str(changed), "has changed"), ("/nowhere.json", "/nowhere.json")):
            with pytest.raises(DatasetError, match=words):
                run(replace(settings, dataset=replace(settings.dataset, path=path)), tmp_path / "run")


def test_a_run_into_the_working_folder_writes_among_the_users_files_and_removes_none(
    tmp_path, make_settings, monkeypatch, capsys
):
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    mine = {"notes.txt": "mine", "sub/thesis.tex": "x", "user.conf": "my own", DETAIL_LOG: "of another program"}
    for name, text in mine.items():
        (work / name).write_text(text)
    (work / "link").symlink_to("notes.txt")
    monkeypatch.chdir(work)
    for _ in range(2):
        with FakeVllm(Behaviour()) as server:
            run(make_settings(server.endpoint, "Offline", "accuracy"), Path().absolute())
        assert read_record(work / "run.json", RunRecord).client.completed == 64
        kept = {"user.conf": "kept-user.conf", DETAIL_LOG: f"kept-{DETAIL_LOG}"}
        assert {name: (work / kept.get(name, name)).read_text() for name in mine} == mine
        assert (work / "link").is_symlink()
    assert f"kept-{DETAIL_LOG}" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert not [path.name for path in work.iterdir() if path.name.endswith(".partial")]


@pytest.mark.parametrize("of", ["this version", "an earlier version"])
def test_notes_in_an_earlier_run_are_kept_when_it_is_made_again(tmp_path, make_settings, whole_run, of):
    for name in ("run", ".run.cm4vllm.json"):  # with their times, by which a file of the run is known
        subprocess.run(["cp", "-a", whole_run.with_name(name), tmp_path], check=True)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    if of == "an earlier version":
        (tmp_path / ".run.cm4vllm.json").unlink()
    with FakeVllm() as server:
        run(make_settings(server.endpoint, "Offline", "accuracy"), tmp_path / "run")
    assert (tmp_path / "kept-run" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "kept-run" / "run.json").exists() == (of == "an earlier version")
    assert not (tmp_path / "run" / "notes.txt").exists()
