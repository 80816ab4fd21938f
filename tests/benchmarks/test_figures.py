"""The module that all benchmarks share: rounds, ratios, limits, the table and the JSON file."""

import json
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from client import added
from clients.programs import AT_ONCE, Mock, Pace, floor, mock
from clients.task import Result, Task, bodies, perform, prompt
from cm4vllm.serving.answers.id_answers import StreamReader, whole_answer
from cm4vllm.serving.answers.stated import AnswerLimits
from figures import figure, interleaved, ratios, report

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_round_measures_every_case_and_begins_with_another():
    called = []
    cases = {name: lambda name=name: called.append(name) or len(called) for name in "abc"}
    measured = interleaved(cases, 3)
    assert called == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert measured == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_the_report_is_a_table_and_a_file_and_an_exit_code_and_the_median_holds_a_limit(tmp_path, capsys):
    assert ratios([10.0, 30.0], [5.0, 10.0]) == [2.0, 3.0]
    limits = {None: {}, ">= 25": {"at_least": 25}, ">= 31": {"at_least": 31}, "<= 30": {"at_most": 30}}
    limits["<= 29.5"] = {"at_most": 29.5}
    made = {words: figure(str(words), [10.0, 30.0, 90.0], "s", **limit) for words, limit in limits.items()}
    assert all((f.value, f.low, f.high, f.limit) == (30.0, 10.0, 90.0, words) for words, f in made.items())
    assert [f.holds for f in made.values()] == [None, True, False, True, False]
    assert report([made[None], made[">= 25"]]) == 0
    assert report([made[">= 25"], made["<= 29.5"]], tmp_path / "figures.json") == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out.splitlines()[-2]
    kept = json.loads((tmp_path / "figures.json").read_text())["<= 29.5"]
    assert kept == {"value": 30.0, "low": 10.0, "high": 90.0, "unit": "s", "limit": "<= 29.5", "holds": False}


# --- the programs run, and write the figures that their tables show


def program(name, *words, timeout=300):
    argv = [sys.executable, str(BENCHMARKS / f"{name}.py"), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout)


def test_a_page_of_400_000_queries_is_small_and_made_in_time(tmp_path):
    done = program("page", "--rounds=1", f"--json={tmp_path / 'f'}")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "f").read_text())
    assert figures["page of 400,000 queries: processor time"]["limit"] == "<= 5"
    assert 20 < figures["page of 400,000 queries: size"]["value"] < 300


def test_a_quick_run_of_the_engine_writes_its_figures(tmp_path):
    done = program("engine", "--quick", "--only=cached,first", f"--json={tmp_path / 'f'}")
    assert done.returncode in (0, 1), done.stderr  # 1: a limit does not hold, which so short a run cannot tell
    figures = json.loads((tmp_path / "f").read_text())
    # In one round a machine that stands still makes any start long.
    start = min(figures["cmind's own start, 300 scripts"]["value"], 6.5)
    assert figures["cached script hit"]["value"] > start * 0.5
    assert figures["cached script hit"]["limit"] == "<= 6.5"
    assert figures["cached script hit: memory"]["value"] > 0
    assert figures["first use, 10,000 scripts: ours / cmind's own indexing"]["limit"] == "<= 1.2"


def test_a_quick_run_of_the_client_writes_its_figures(tmp_path):
    done = program("client", "--quick", "--only=alone,latency,vllm", f"--json={tmp_path / 'f'}")
    assert done.returncode in (0, 1), done.stderr
    figures = json.loads((tmp_path / "f").read_text())
    assert figures["queries/s without LoadGen: ours"]["value"] > 0
    assert figures["error of TPOT p50: ours"]["limit"] == "<= 2"
    assert "the real vLLM: left out: not installed" in done.stderr


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("client", "--only=alone,nothing", "no part nothing; there are offline, alone,"),
        ("client", "--cores=0,0", "two different cores"),
    ],
)
def test_what_cannot_be_measured_is_refused(name, words, said):
    done = program(name, words)
    assert (done.returncode, said in done.stderr) == (2, True)


def test_what_the_client_adds_is_what_loadgen_measured_less_what_the_server_did():
    result = Result(queries=4, tokens=8, wall_s=1, ttft_p50=21.5, ttft_p99=30, tpot_p50=20.4)
    more = added(result, Mock(0, [20.0, 20.0, 21.0, 22.0], [20.0, 20.0, 20.0, 21.0]))
    assert (more.ttft_p50, more.ttft_p99, more.tpot_p50) == (0.5, 8.0, pytest.approx(2.0))


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


def token(prompt, k):
    """Return the k-th token that the mock server answers `prompt` with."""
    return ((prompt[0] + k) % 4096 * 7919 + 307) % 128_256


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
    assert server.ttft[0] >= 20
    assert server.ttft[0] + 4 * server.tpot[0] >= 60


def test_spread_streams_begin_at_different_times_of_the_interval():
    with mock(core=0, tokens=2, pace=Pace(ttft_ms=1.0, interval_ms=100.0, spread=True)) as server:
        for _ in range(8):
            ask(server.port, STREAMED)
    # Of a machine that stands still a stream may be late: that of the latest ones does not count.
    phases = sorted(ttft - 1 for ttft in server.ttft)
    assert phases[0] < 50 < phases[-3] < 150


def test_every_contestant_here_counts_all_tokens():
    task = Task(port=0, queries=20, tokens=7, streamed=True, in_flight=4)
    with mock(core=0, tokens=7) as server:
        for streamed in (True, False):
            here = replace(task, port=server.port, streamed=streamed)
            names = ["ours", "engine", *([] if streamed else ["reference"])]
            for result in (floor(here, 0), *(perform(name, "alone", here, [0]) for name in names)):
                assert (result.queries, result.tokens) == (20, 140)


def test_a_contestant_that_counts_wrong_is_refused():
    with mock(core=0, tokens=3) as server, pytest.raises(RuntimeError, match="counted 60 tokens, not 20 x 4"):
        perform("ours", "alone", Task(port=server.port, queries=20, tokens=4, streamed=False, in_flight=4), [0])


def test_the_bodies_that_are_sent_are_what_the_client_sends():
    body = json.loads(bodies(Task(port=0, queries=1, tokens=9, streamed=True, in_flight=1))[0])
    assert body["stream_options"] == {"include_usage": True}
    assert body["return_token_ids"] is True
    assert len(body["prompt"]) == 128
