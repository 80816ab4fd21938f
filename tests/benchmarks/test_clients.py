"""The mock server answers as vLLM does, and the clients are judged by the tokens that it sent."""

import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from clients.programs import AT_ONCE, Pace, floor, mock, token
from clients.task import Task, bodies, perform, prompt
from cm4vllm.serving.answers.id_answers import StreamReader, whole_answer
from cm4vllm.serving.answers.stated import AnswerLimits

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
