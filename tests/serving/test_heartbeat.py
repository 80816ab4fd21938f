"""Servers that live and do not work: stopped, silent, standing still; and those that only look so."""

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cm4vllm.common.repetition import repeated
from cm4vllm.records.metrics import METRICS_FILE
from cm4vllm.serving.probing import server_metrics
from cm4vllm.serving.probing.server_metrics import sampled
from cm4vllm.serving.probing.server_requests import Site
from cm4vllm.serving.supervision import heartbeat
from cm4vllm.serving.supervision.heartbeat import (
    SILENT_LOOKS,
    STANDSTILL_LOOKS,
    STOPPED_LOOKS,
    Heartbeat,
    stopped_process,
)

PAGE = (Path(__file__).parent / "recorded" / "metrics-after.txt").read_text()
RUNNING = 'vllm:num_requests_running{engine="0",model_name="cm4vllm-tiny"} '


def page(running, tokens, engine="0"):
    labels = f'{{engine="{engine}",model_name="m"}}'
    return f"vllm:num_requests_running{labels} {running}\nvllm:generation_tokens_total{labels} {tokens}.0\n"


def beats(heartbeat, looks, *pages, url="http://a"):
    for _ in range(looks):
        for text in pages:
            heartbeat.answered(url, text)
    return heartbeat.reason


def test_an_engine_with_requests_that_stands_still_is_stuck():
    assert RUNNING in PAGE
    heartbeat = Heartbeat()
    assert not beats(heartbeat, STANDSTILL_LOOKS, PAGE)  # the first look is what the others are compared with
    reason = beats(heartbeat, 1, PAGE)
    assert "http://a, engine 0: " in reason
    assert "no progress for 300 s" in reason


@pytest.mark.parametrize(
    "pages",
    [(page(3, 10), page(3, 11)), (page(3, 10), page(2, 10)), (page(0, 10),)],
    ids=["tokens", "requests", "nothing asked of it"],
)
def test_an_engine_that_moves_or_has_nothing_to_do_is_not_stuck(pages):
    assert not beats(Heartbeat(), 2 * STANDSTILL_LOOKS, *pages)


def test_requests_that_never_reached_the_engine_count_and_a_query_after_a_long_rest_is_given_its_time():
    assert "5 requests open" in beats(Heartbeat(open_requests=5), STANDSTILL_LOOKS + 1, page(0, 10))
    heartbeat = Heartbeat()
    assert not beats(heartbeat, 2 * STANDSTILL_LOOKS, page(0, 10))
    heartbeat.open_requests = 1
    assert not beats(heartbeat, 1, page(0, 10))


def test_one_of_several_engines_is_named_and_an_idle_one_is_not():
    heartbeat = Heartbeat(open_requests=5)
    for number in range(2 * STANDSTILL_LOOKS):
        heartbeat.answered("http://a", page(2, number, "0") + page(0, 7, "1"))
    assert not heartbeat.reason
    for number in range(STANDSTILL_LOOKS + 1):
        heartbeat.answered("http://a", page(2, 1000 + number, "0") + page(4, 7, "1"))
    assert "http://a, engine 1: 4 requests" in heartbeat.reason


def test_silence_counts_only_while_it_lasts():
    heartbeat = Heartbeat()
    for _ in range(3):
        for _ in range(SILENT_LOOKS - 1):
            heartbeat.silent("http://a", 10)
        heartbeat.answered("http://a", PAGE)
    assert not heartbeat.reason
    for _ in range(SILENT_LOOKS):
        heartbeat.silent("http://a", 10)
    assert "http://a answered none of the last 3 requests" in heartbeat.reason


@pytest.mark.parametrize("urls", [["http://a"], ["http://a", "http://b"]])
def test_a_server_from_which_tokens_come_is_not_stuck_however_long_its_page_is_missing(urls):
    heartbeat = Heartbeat()
    for look in range(100):
        for url in urls:
            heartbeat.silent(url, 10)
        heartbeat.client_received(100 * (look + 1), 5)
    assert not heartbeat.reason
    for _ in range(SILENT_LOOKS):
        assert not heartbeat.reason
        heartbeat.silent("http://a", 10)
    assert f"http://a answered none of the last {SILENT_LOOKS} requests" in heartbeat.reason


@pytest.mark.parametrize("running", ["1.7e308", "1e300", "+Inf", "-3", "9" * 400])
def test_a_count_that_no_engine_can_have_is_left_out(running):
    heartbeat = Heartbeat()
    assert not beats(heartbeat, 3, page(running, 10) + page(running, 10).replace("running", "waiting"))
    assert not beats(heartbeat, 2 * STANDSTILL_LOOKS, page(running, 10))


@pytest.fixture
def parent():
    """A process with a child, which sleep."""
    code = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process.pid, child
    os.kill(child, signal.SIGKILL)
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_stopped_process_is_named_when_it_stays_so(parent):
    supervisor, child = parent
    heartbeat = Heartbeat({supervisor: "http://a"})
    assert stopped_process(supervisor) == ""
    for signum, looks in ((signal.SIGSTOP, STOPPED_LOOKS - 1), (signal.SIGCONT, 1), (signal.SIGSTOP, STOPPED_LOOKS)):
        os.kill(child, signum)
        deadline = time.monotonic() + 30
        while bool(stopped_process(supervisor)) != (signum == signal.SIGSTOP):
            assert time.monotonic() < deadline
        for _ in range(looks):
            assert not heartbeat.reason
            assert heartbeat.look_at_processes() == (signum == signal.SIGSTOP)
    assert heartbeat.reason.startswith(f"http://a: its process sleep 60 ({child}) is stopped")


class Silent(http.server.BaseHTTPRequestHandler):
    """Serves metrics while `talks` is set, and waits otherwise, as a stopped process would."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.talks.wait(20)
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE.encode())


@pytest.fixture
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.talks = threading.Event()
    server.handle_error = lambda *_: None  # whoever asked has gone
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.talks.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("talks_first", [True, False])
def test_a_server_that_falls_silent_is_noticed(server, tmp_path, monkeypatch, talks_first):
    monkeypatch.setattr(server_metrics, "_TIMEOUT_S", 0.1)
    # The last look is waited for as in a run, not for two of these short times: its connection is closed then.
    monkeypatch.setattr(server_metrics, "repeated", lambda *given, end_s: repeated(*given, end_s=30))
    url = f"http://127.0.0.1:{server.server_port}"
    if talks_first:
        server.talks.set()
    with sampled([Site(url)], tmp_path / METRICS_FILE, interval_s=0.01) as watch:
        server.talks.clear()
        deadline = time.monotonic() + 20
        while not watch.heartbeat.reason and time.monotonic() < deadline:
            time.sleep(0.01)
    assert watch.heartbeat.reason.startswith(f"{url} answered none")


def test_a_server_that_refuses_is_not_silent(tmp_path):
    with sampled([Site("http://127.0.0.1:1")], tmp_path / METRICS_FILE, interval_s=0.01) as watch:
        time.sleep(0.2)
    assert not watch.heartbeat.reason
    assert watch.summary() is None


def test_a_server_without_metrics_from_which_no_token_comes_is_stuck(monkeypatch):
    now, heart = [0.0], Heartbeat()
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    heart.client_received(0, 0)
    for now[0], tokens, waiting in ((5000.0, 0, 0), (5001.0, 0, 8), (8600.0, 0, 8), (8602.0, 5, 8), (12_201.0, 5, 8)):
        heart.client_received(tokens, waiting)
        assert not heart.reason
    now[0] += 2
    heart.client_received(5, 8)
    assert heart.reason == "8 requests are open, and no token has come for 3601 s"
