"""The server's metrics, from pages that vLLM 0.32.0 served in the middle of a run, kept to the lines that count."""

import http.server
import random
import re
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from cm4vllm.records.metrics import METRICS_FILE, MetricsSample, read_samples, speed_of
from cm4vllm.serving.probing.server_metrics import sampled
from cm4vllm.serving.probing.server_requests import Site

RECORDED = Path(__file__).parent / "recorded"
BEFORE, AFTER = (RECORDED / f"metrics-{moment}.txt" for moment in ("before", "after"))


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves one page after the other, and the last one from then on."""

    pages: list[str] = []
    served = 0

    def log_message(self, *_):
        pass

    def do_GET(self):
        page = self.pages[min(type(self).served, len(self.pages) - 1)]
        type(self).served += 1
        self.send_response(200 if page else 503)
        self.end_headers()
        self.wfile.write(page.encode())


@pytest.fixture
def serve_as():
    servers = []

    def start(kind, *pages, **more):
        handler = type("Served", (kind,), {"pages": list(pages), **more})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", handler

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def serve(serve_as):
    return lambda *pages: serve_as(Pages, *pages)


def watched(url, handler, tmp_path, served=4):
    """Sample until the server was asked so often."""
    with sampled([Site(url)], tmp_path / METRICS_FILE, interval_s=0.01) as watch:
        deadline = time.monotonic() + 20
        while handler.served < served and time.monotonic() < deadline:
            time.sleep(0.01)
    return watch


def seen(tmp_path, *sites):
    """Return what two looks at the servers see."""
    with sampled([Site(url) for url, _ in sites], tmp_path / METRICS_FILE, interval_s=60) as watch:
        pass
    return watch


def test_a_run_is_summed_up_from_what_the_server_counted_during_it(serve, tmp_path):
    watch = seen(tmp_path, serve(BEFORE.read_text(), AFTER.read_text()))
    summary = watch.summary()
    assert (summary.samples, summary.missed) == (2, 0)
    assert (summary.running_max, summary.waiting_max) == (242, 253)
    assert summary.kv_cache_usage_max == pytest.approx(0.0402, abs=1e-4)
    first, last = watch.samples
    assert summary.generation_tokens == last.generation_tokens - first.generation_tokens > 0
    assert summary.prefill.requests > 0
    assert 0 < summary.prefill.mean_ms < summary.prefill.p99_at_most_ms
    assert summary.reason_of_reuse == ""
    assert read_samples(tmp_path / METRICS_FILE) == watch.samples


def test_what_was_counted_before_the_run_is_not_the_runs(serve, tmp_path):
    summary = seen(tmp_path, serve(AFTER.read_text())).summary()
    assert (summary.prompt_tokens, summary.generation_tokens, summary.queue, summary.prefill) == (0, 0, None, None)


@pytest.mark.parametrize("metric", ["prefix_cache_hits_total", "prompt_tokens_cached_total"])
def test_tokens_from_a_cache_are_told(serve, tmp_path, metric):
    line = f'vllm:{metric}{{engine="0",model_name="cm4vllm-tiny"}} '
    assert f"{line}0.0" in AFTER.read_text()
    site = serve(BEFORE.read_text(), AFTER.read_text().replace(f"{line}0.0", f"{line}17.0"))
    assert "17 prompt tokens from a cache" in seen(tmp_path, site).summary().reason_of_reuse


def test_several_engines_and_servers_are_added_up_and_the_fullest_cache_counts(serve, tmp_path):
    page = BEFORE.read_text()
    lines = [line for line in page.splitlines(True) if not line.startswith("#")]
    other = [
        re.sub(r"^(vllm:kv_cache_usage.*) .*", r"\1 0.75", line).replace('engine="0"', 'engine="1"') for line in lines
    ]
    both, alone = seen(tmp_path, serve("".join([*lines, *other]), page)).samples
    assert (both.running, both.prompt_tokens) == (2 * alone.running, 2 * alone.prompt_tokens)
    assert both.kv_cache_usage == 0.75
    assert seen(tmp_path, serve(page), serve(page)).samples[0].prompt_tokens == 2 * alone.prompt_tokens > 0


@pytest.mark.parametrize(
    "pages",
    [
        [BEFORE.read_text(), "", AFTER.read_text()],
        ["", BEFORE.read_text(), AFTER.read_text()],
        [
            BEFORE.read_text(),
            BEFORE.read_text() + 'vllm:num_requests_running{engine="0\nvllm:num_requests_running\n',
            AFTER.read_text(),
        ],
    ],
)
def test_looks_are_taken_while_the_run_lasts_and_missed_ones_counted(serve, tmp_path, pages):
    url, handler = serve(*pages)
    summary = watched(url, handler, tmp_path).summary()
    assert summary.missed == 1
    assert summary.samples >= 3


RUNNING = 'vllm:num_requests_running{engine="0",model_name="cm4vllm-tiny"} '


@pytest.mark.parametrize("edge", ["", 'le="wide",', 'le="NaN",'])
def test_a_bucket_without_an_edge_is_left_out(serve, tmp_path, edge):
    lines = BEFORE.read_text().splitlines(True)
    at = next(i for i, line in enumerate(lines) if line.startswith("vllm:request_prefill_time_seconds_bucket"))
    lines[at] = f'vllm:request_prefill_time_seconds_bucket{{{edge}engine="0"}} 1.0\n'
    summary = seen(tmp_path, serve("".join(lines), AFTER.read_text())).summary()
    assert (summary.samples, summary.missed) == (2, 0)
    assert summary.prefill.p99_at_most_ms > 0


@pytest.mark.parametrize("page", ["", "<html>hello</html>", "process_open_fds 7.0\n"])
def test_a_server_without_such_metrics_leaves_nothing(serve, tmp_path, page):
    assert seen(tmp_path, serve(page)).summary() is None
    assert not (tmp_path / METRICS_FILE).exists()


def test_a_failing_run_still_fails_with_its_own_error(serve, tmp_path):
    url, _ = serve(BEFORE.read_text())
    with pytest.raises(KeyError), sampled([Site(url)], tmp_path / "gone" / METRICS_FILE, interval_s=60):
        raise KeyError


GENERATED = 'vllm:generation_tokens_total{engine="0",model_name="cm4vllm-tiny"} '


@pytest.mark.parametrize(
    "lines",
    [
        [f"{GENERATED}1.7e308", GENERATED.replace('"0"', '"1"') + "1.7e308"],
        [f"{GENERATED}-1"],
        [f"{GENERATED}{'9' * 400}"],
        [f"{RUNNING}NaN"],
        ['vllm:num_requests_waiting{engine="7",model_name="m"} +Inf'],
        ['vllm:request_queue_time_seconds_sum{engine="7",model_name="m"} 1.7e308'],
        ["process_start_time_seconds 1e300", f"{GENERATED}1e19"],
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_value_that_no_count_can_have_is_missed_and_loses_nothing(serve, tmp_path, capsys, lines, place):
    pages = [BEFORE.read_text(), AFTER.read_text(), AFTER.read_text()]
    pages.insert(place, "\n".join([BEFORE.read_text(), *lines, ""]))
    url, handler = serve(*pages)
    watch = watched(url, handler, tmp_path, served=5)
    assert watch.summary().missed == 1
    assert "".join(capsys.readouterr()).count("cannot be read") == 1
    assert read_samples(tmp_path / METRICS_FILE) == watch.samples


WAITING = RUNNING.replace("running", "waiting")


@pytest.mark.parametrize(
    "lines",
    [
        [f"{RUNNING}1.7e308", f"{WAITING}1.7e308"],
        [f"{RUNNING}9e15", f"{WAITING}9e15", RUNNING.replace('"0"', '"1"') + "1.7e308"],
    ],
)
@pytest.mark.parametrize("good", [0, 1])
def test_such_values_in_every_page_from_then_on_neither_end_the_sampling_nor_lose_the_run(serve, tmp_path, lines, good):
    url, handler = serve(*[BEFORE.read_text()] * good, "\n".join([BEFORE.read_text(), *lines, ""]))
    watch = watched(url, handler, tmp_path, served=good + 6)
    assert handler.served >= good + 6
    assert len(watch.samples) == good


def test_an_error_that_no_page_should_cause_costs_its_sample_alone(serve, tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise OverflowError("cannot convert float infinity to integer")

    monkeypatch.setattr("cm4vllm.serving.supervision.heartbeat.Heartbeat.answered", broken)
    url, handler = serve(BEFORE.read_text())
    watch = watched(url, handler, tmp_path)
    assert handler.served >= 4 and watch.samples == []
    assert "cannot convert float infinity" in "".join(capsys.readouterr())


class Moved(Pages):
    """Has its page at /metrics/, as a server whose metrics are mounted there."""

    def do_GET(self):
        if self.path.endswith("/"):
            super().do_GET()
            return
        self.send_response(307)
        self.send_header("Location", "/metrics/")
        self.send_header("Content-Length", "0")
        self.end_headers()


class Endless(Pages):
    """Begins with a page, and goes on with `more` for ever from the second one on."""

    more, pause_s = b"x" * 65536, 0.0

    def do_GET(self):
        super().do_GET()
        while type(self).served > self.good:
            try:
                self.wfile.write(self.more)
                time.sleep(self.pause_s)
            except OSError:
                return


def test_a_page_that_the_same_server_moved_is_read(serve_as, tmp_path):
    url, handler = serve_as(Moved, BEFORE.read_text(), AFTER.read_text())
    assert watched(url, handler, tmp_path).summary().missed == 0


@pytest.mark.parametrize("endless", [{"more": b"x" * 65536}, {"more": b"x", "pause_s": 0.1}])
@pytest.mark.parametrize("good", [0, 1])
def test_a_page_without_end_is_missed_in_its_time_and_loses_nothing(
    serve_as, tmp_path, monkeypatch, capsys, endless, good
):
    monkeypatch.setattr("cm4vllm.serving.probing.server_metrics._TIMEOUT_S", 0.5)
    monkeypatch.setattr("cm4vllm.common.http_requests.MOST_BYTES", 10**6)
    url, handler = serve_as(Endless, BEFORE.read_text(), AFTER.read_text(), good=good, **endless)
    began = time.monotonic()
    watch = watched(url, handler, tmp_path, served=good + 1)
    assert time.monotonic() - began < 30
    assert len(watch.samples) == good
    assert watch.heartbeat.reason == ""
    assert "cannot be read" in "".join(capsys.readouterr())


# --- the speed of a server through a run: changes that its load explains, and others


def samples(
    seconds, step_ms, *, running=lambda at: 100.0, slow=lambda at: 1.0, prompts=lambda at: 1.0, every_s=2.0, seed=1
):
    """The samples of a server whose steps take step_ms(running) * slow(at), give or take 5 %."""
    noise = random.Random(seed)
    tokens, computed, taken, at = 0.0, 0.0, [], 0.0
    while at <= seconds:
        now = round(running(at))
        taken.append(
            MetricsSample(
                at_s=at,
                running=now,
                waiting=0,
                kv_cache_usage=0.5,
                preemptions=0,
                prefix_cache_hits=0,
                cached_prompt_tokens=0,
                prompt_tokens=round(computed),
                generation_tokens=round(tokens),
            )
        )
        following = (now + round(running(at + every_s))) / 2
        made = every_s * 1000 * following / (step_ms(following) * slow(at) * noise.uniform(0.95, 1.05))
        tokens, computed = tokens + made, computed + made * prompts(at)
        at += every_s
    return taken


def by_line(running):
    return 4 + 0.1 * running


def changing(at):
    """A load that goes up and down between 60 and 250 requests."""
    return 60 + 190 * abs((at / 37) % 2 - 1)


def test_a_load_that_changes_is_no_change_of_speed():
    speed = speed_of(samples(600, by_line, running=changing))
    assert not speed.slowed
    assert speed.words == ""
    assert speed.parts == 20
    assert 0.96 < speed.slowest <= 1
    for running in (60, 150, 250):
        assert abs(speed.step_ms(running) / by_line(running) - 1) < 0.07
    constant = speed_of(samples(200, by_line))
    assert (constant.per_request_ms, constant.low, constant.high, constant.slowed) == (0, 100, 100, False)
    assert abs(constant.base_ms / by_line(100) - 1) < 0.03


def test_a_server_that_is_slower_for_some_seconds_is_told_with_the_time():
    speed = speed_of(samples(345, by_line, running=changing, slow=lambda at: 1.5 if at >= 333 else 1.0))
    assert speed.slowed
    assert (speed.slowest_from_s, speed.slowest_to_s) == (326.8, 344.0)
    assert speed.words == (
        f"from 327 to 344 s the server generated {100 * (1 - speed.slowest):.0f} % fewer tokens/s than in most of the "
        "run with as many requests"
    )
    assert 0.66 < speed.slowest < 0.85


def test_a_batch_that_is_filled_with_prompts_is_no_loss_of_speed():
    def first(much):
        return lambda at: much if at < 60 else 1.0

    assert speed_of(samples(600, by_line, slow=first(1.5))).slowed
    filled = speed_of(samples(600, by_line, slow=first(1.5), prompts=first(2.0)))
    assert not filled.slowed
    assert filled.parts == 18


def test_a_server_whose_speed_always_changes_has_no_slow_part():
    noise = random.Random(5)
    speeds = [noise.uniform(1.0, 1.6) for _ in range(100)]
    assert not speed_of(samples(600, by_line, slow=lambda at: speeds[int(at // 30)])).slowed


def test_few_parts_do_not_tell_what_is_typical():
    speed = speed_of(samples(38, by_line, slow=lambda at: 2.0 if at >= 30 else 1.0))
    assert speed.parts == 4
    assert speed.slowest < 0.6
    assert not speed.slowed


def test_a_server_that_is_hardly_used_has_no_speed():
    assert speed_of([]) is None
    assert speed_of(samples(10, by_line)) is None
    assert speed_of(samples(600, by_line, running=lambda at: 0)) is None
    assert speed_of([replace(sample, generation_tokens=0) for sample in samples(100, by_line)]) is None
