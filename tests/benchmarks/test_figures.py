"""The module that all benchmarks share: rounds, ratios, limits, the table and the JSON file."""

import json
import re
import runpy
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from client import _added
from clients.programs import AT_ONCE, Pace, Stamps, floor, mock, token
from clients.task import Result, Task, bodies, perform, prompt
from cm4vllm.serving.answers.id_answers import StreamReader, whole_answer
from cm4vllm.serving.answers.stated import AnswerLimits


@pytest.fixture(scope="module")
def figures():
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "figures.py"))


def test_every_round_measures_every_case_and_begins_with_another(figures):
    called = []
    cases = {name: lambda name=name: called.append(name) or len(called) for name in "abc"}
    measured = figures["interleaved"](cases, 3)
    assert called == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert measured == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_a_ratio_is_taken_within_a_round(figures):
    assert figures["ratios"]([10.0, 30.0], [5.0, 10.0]) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("limits", "limit", "holds"),
    [
        ({}, None, None),
        ({"at_least": 25}, ">= 25", True),
        ({"at_least": 31}, ">= 31", False),
        ({"at_most": 30}, "<= 30", True),
        ({"at_most": 29.5}, "<= 29.5", False),
    ],
)
def test_the_limit_is_held_by_the_median(figures, limits, limit, holds):
    made = figures["figure"]("x", [10.0, 30.0, 90.0], "s", **limits)
    assert (made.value, made.low, made.high, made.limit, made.holds) == (30.0, 10.0, 90.0, limit, holds)


def test_the_report_is_a_table_and_a_file_and_an_exit_code(figures, tmp_path, capsys):
    good = figures["figure"]("ours / theirs", [60.0], "x", at_least=50)
    bad = figures["figure"]("time", [40.0], "s", at_most=30)
    assert figures["report"]([good]) == 0
    assert figures["report"]([good, bad], tmp_path / "figures.json") == 1
    shown = capsys.readouterr().out
    assert "DOES NOT HOLD" in shown.splitlines()[-2]
    assert json.loads((tmp_path / "figures.json").read_text())["time"] == {
        "value": 40.0,
        "low": 40.0,
        "high": 40.0,
        "unit": "s",
        "limit": "<= 30",
        "holds": False,
    }


# --- the benchmark of the page: a page of 400,000 queries is made within its limits of time and size


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "page.py"


def test_a_page_of_400_000_queries_is_small_and_made_in_time(tmp_path):
    words = ["--rounds=1", f"--json={tmp_path / 'figures.json'}"]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["page of 400,000 queries: processor time"]["limit"] == "<= 5"
    assert 20 < figures["page of 400,000 queries: size"]["value"] < 300


# --- the benchmark of the engine runs, and writes the figures that its table shows


ENGINE = Path(__file__).parents[2] / "benchmarks" / "engine.py"


def test_a_quick_run_writes_its_figures(tmp_path):
    words = ["--quick", "--only=cached,unknown,search,first", f"--json={tmp_path / 'f'}"]
    done = subprocess.run([sys.executable, str(ENGINE), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr  # 1: a limit does not hold, which so short a run cannot tell
    figures = json.loads((tmp_path / "f").read_text())
    # In one round a machine that stands still makes any start long.
    start = min(figures["cmind's own start, 300 scripts"]["value"], 6.5)
    assert figures["cached script hit"]["value"] > start * 0.5
    assert figures["cached script hit"]["limit"] == "<= 6.5"
    assert figures["cached script hit: memory"]["value"] > 0
    assert figures["first use, 10,000 scripts: ours / cmind's own indexing"]["limit"] == "<= 1.2"


def test_a_case_that_there_is_not_is_refused():
    done = subprocess.run([sys.executable, str(ENGINE), "--only=nothing"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no part nothing" in done.stderr


# --- the benchmark of the client runs, and writes the figures that its table shows


CLIENT = Path(__file__).parents[2] / "benchmarks" / "client.py"


def test_a_quick_run_writes_its_figures_client(tmp_path):
    words = ["--quick", "--only=alone,latency,vllm", f"--json={tmp_path / 'f'}"]
    done = subprocess.run([sys.executable, str(CLIENT), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr  # 1: a limit does not hold, which so short a run cannot tell
    figures = json.loads((tmp_path / "f").read_text())
    assert figures["queries/s without LoadGen: ours"]["value"] > 0
    assert figures["error of TPOT p50: ours"]["limit"] == "<= 2"
    assert "the real vLLM: left out: not installed" in done.stderr
    assert set(figures["error of TPOT p50: ours"]) == {"value", "low", "high", "unit", "limit", "holds"}


@pytest.mark.parametrize(
    ("words", "said"),
    [("--only=alone,nothing", "no part nothing; there are offline, alone,"), ("--cores=0,0", "two different cores")],
)
def test_what_cannot_be_measured_is_refused(words, said):
    done = subprocess.run([sys.executable, str(CLIENT), words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr


def test_what_the_client_adds_is_what_loadgen_measured_less_what_the_server_did():
    result = Result(queries=4, tokens=8, wall_s=1, ttft_p50=21.5, ttft_p99=30, tpot_p50=20.4)
    added = _added(result, Stamps([20.0, 20.0, 21.0, 22.0], [20.0, 20.0, 20.0, 21.0]))
    assert (added.p50, added.p99) == (0.5, 8.0)
    assert added.tpot == pytest.approx(2.0)


# --- the mock server answers as vLLM does, and the clients are judged by the tokens that it sent


RECORDED = Path(__file__).parent
#: The request that the recorded answers of vLLM 0.32 (CPU, the tiny model) were given to.
REQUEST = {
    "model": "tiny",
    "prompt": [5, 6, 7, 8, 9],
    "max_tokens": 12,
    "min_tokens": 2,
    "temperature": 0,
    "top_p": 1,
    "top_k": 1,
    "seed": 42,
    "return_token_ids": True,
}
STREAMED = {**REQUEST, "stream": True, "stream_options": {"include_usage": True}}


def ask(port, body):
    """Return the whole answer, head and framing included."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data)
        connection.sendall(head + data)
        answer = b""
        while not whole(answer):
            answer += connection.recv(65536)
    return answer


def whole(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return len(body) == int(length[1]) if length else answer.endswith(b"\r\n0\r\n\r\n")


def unchunked(answer):
    rest, body = answer.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def read(answer, *, streamed, prompt_tokens, max_tokens):
    """Return the tokens that the client finds in an answer."""
    limits = AnswerLimits(min_tokens=1, max_tokens=max_tokens, max_model_len=2048)
    if not streamed:
        return whole_answer(answer.partition(b"\r\n\r\n")[2], prompt_tokens, limits).tokens.tolist()
    reader = StreamReader()
    reader.feed(unchunked(answer))
    return reader.finish(prompt_tokens, limits).tokens.tolist()


def shape(answer):
    """Return an answer with what differs from answer to answer left out: its id, times, model, words, and lengths."""
    for pattern, instead in (
        (rb'"id":"cmpl-[0-9a-f]{16}"', b"ID"),
        (rb'"created":\d+', b"CREATED"),
        (rb'"model":"\w+"', b"MODEL"),
        (rb'"text":"[^"]*"', b"TEXT"),
        (rb'"token_ids":\[[\d,]+\]', b"IDS"),
        (rb"date: [^\r]*", b"DATE"),
        (rb"\r\n[0-9a-f]+\r\ndata:", b"\r\nSIZE\r\ndata:"),
        (rb"content-length: \d+", b"LENGTH"),
    ):
        answer = re.sub(pattern, instead, answer)
    return answer


@pytest.mark.parametrize(("body", "recorded"), [(STREAMED, "vllm_0_32_stream.http"), (REQUEST, "vllm_0_32_whole.http")])
@pytest.mark.parametrize("pace", [AT_ONCE, Pace(ttft_ms=1.0, interval_ms=1.0)], ids=["at once", "paced"])
def test_the_mock_server_answers_as_vllm_does(body, recorded, pace):
    with mock(core=0, tokens=12, pace=pace) as server:
        assert shape(ask(server.port, body)) == shape((RECORDED / recorded).read_bytes())


def test_the_client_reads_the_recorded_answers_of_vllm():
    for name, streamed in (("vllm_0_32_stream.http", True), ("vllm_0_32_whole.http", False)):
        tokens = read((RECORDED / name).read_bytes(), streamed=streamed, prompt_tokens=5, max_tokens=12)
        assert tokens == [307, 327, *[487] * 10]


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"stream": True, "stream_interval": 5}])
@pytest.mark.parametrize("pace", [AT_ONCE, Pace(ttft_ms=1.0, interval_ms=0.1)], ids=["at once", "paced"])
def test_the_client_reads_the_tokens_that_the_mock_server_says_it_sends(more, pace):
    with mock(core=0, tokens=40, pace=pace) as server:
        for count in (1, 2, 40):
            ids = prompt(count, 100, 128_000)
            answer = ask(server.port, {**STREAMED, "stream": False, **more, "prompt": ids, "max_tokens": count})
            tokens = read(answer, streamed="stream" in more, prompt_tokens=100, max_tokens=count)
            assert tokens == [token(ids, k) for k in range(count)]


def test_the_mock_server_keeps_its_pace_and_stamps_it():
    with mock(core=0, tokens=5, pace=Pace(ttft_ms=20.0, interval_ms=10.0)) as server:
        ask(server.port, STREAMED)
    assert server.stamps.ttft[0] >= 20
    assert server.stamps.ttft[0] + 4 * server.stamps.tpot[0] >= 60


def test_spread_streams_begin_at_different_times_of_the_interval():
    with mock(core=0, tokens=2, pace=Pace(ttft_ms=1.0, interval_ms=100.0, spread=True)) as server:
        for _ in range(8):
            ask(server.port, STREAMED)
    # Of a machine that stands still a stream may be late: that of the latest ones does not count.
    phases = sorted(ttft - 1 for ttft in server.stamps.ttft)
    assert phases[0] < 50 < phases[-3] < 150


def test_every_contestant_here_counts_all_tokens():
    task = Task(port=0, queries=20, tokens=7, streamed=True, in_flight=4)
    with mock(core=0, tokens=7) as server:
        for streamed in (True, False):
            task_of_server = replace(task, port=server.port, streamed=streamed)
            results = [
                floor(task_of_server, 0),
                perform("reference", "alone", task_of_server, [0]),
                perform("ours", "alone", task_of_server, [0]),
                perform("engine", "alone", task_of_server, [0]),
            ]
            assert [(result.queries, result.tokens) for result in results] == [(20, 140)] * 4


def test_a_contestant_that_counts_wrong_is_refused():
    with mock(core=0, tokens=3) as server, pytest.raises(RuntimeError, match="counted 60 tokens, not 20 x 4"):
        perform("ours", "alone", Task(port=server.port, queries=20, tokens=4, streamed=False, in_flight=4), [0])


def test_the_bodies_that_are_sent_are_what_the_client_sends():
    body = json.loads(bodies(Task(port=0, queries=1, tokens=9, streamed=True, in_flight=1))[0])
    assert body["stream_options"] == {"include_usage": True}
    assert body["return_token_ids"] is True
    assert len(body["prompt"]) == 128
