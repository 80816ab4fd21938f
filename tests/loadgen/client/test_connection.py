"""One connection, fed with recorded bytes in every possible way."""

import json

import pytest
from fake_vllm import Behaviour, Fault, stream_events

from cm4vllm.loadgen.client.connection import Connection
from cm4vllm.loadgen.client.wire import Sampling, completion_body, text_completion_body
from cm4vllm.records.server import Api, Dialect, Prompts
from cm4vllm.serving.answers.id_answers import StreamReader, whole_answer
from cm4vllm.serving.answers.stated import AnswerLimits

PROMPT = [5, 6, 7]
TOKENS = [11, 0, 767, 3, 3, 128009, 42]
LIMITS = AnswerLimits(min_tokens=1, max_tokens=200, max_model_len=2048)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Transport:
    """Hands bytes to whatever protocol is set, as an event loop does."""

    def __init__(self, connection):
        self.protocol = connection
        self.closed = False
        connection.connection_made(self)

    def get_extra_info(self, name):
        return None

    def write(self, data):
        self.written = data

    def close(self):
        self.closed = True


class Exchange:
    def __init__(self):
        self.reader = StreamReader()
        self.firsts = []
        self.tokens = None
        self.cause = None

    def body_received(self, status, data):
        first = self.reader.feed(data)
        if first is not None:
            self.firsts.append(first)
        return bool(self.firsts)

    def response_ended(self, connection, status, *, cut=False):
        self.tokens = self.reader.finish(len(PROMPT), LIMITS).tokens.tolist()

    def connection_failed(self, cause, *, answered, kept=False):
        self.cause = cause, answered


def chunked(pieces):
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"


def recorded(tokens=TOKENS, **behaviour):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 200}
    events = stream_events(body, tokens, Behaviour(**behaviour), Fault.NONE)
    return events, HEAD + chunked(events)


@pytest.fixture
def connection():
    connection = Connection(lambda _: None)
    return connection, Transport(connection)


def deliver(connection, pieces, *, hand_over=False):
    """Send one request and hand over the pieces of its answer; return the exchange."""
    exchange = Exchange()
    connection[0].send(exchange, b"request")
    for piece in pieces:
        connection[1].protocol.data_received(piece)
        if hand_over:
            connection[0].hand_over()
    return exchange


@pytest.mark.parametrize("tokens_per_chunk", [1, 3])
@pytest.mark.parametrize("hand_over", [False, True])
def test_every_split_of_an_answer_gives_the_same_tokens(connection, tokens_per_chunk, hand_over):
    _, stream = recorded(tokens_per_chunk=tokens_per_chunk)
    for cut in range(1, len(stream)):
        exchange = deliver(connection, [stream[:cut], stream[cut:]], hand_over=hand_over)
        assert (exchange.tokens, exchange.firsts) == (TOKENS, [11])
    assert connection[0].open


def test_trailers_and_answers_of_known_length_are_understood(connection):
    events, _ = recorded()
    trailers = HEAD + chunked(events)[:-2] + b"x-served-by: one\r\n\r\n"
    known = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (sum(map(len, events)), b"".join(events))
    for stream in (trailers, known):
        for cut in range(1, len(stream), 7):
            assert deliver(connection, [stream[:cut], stream[cut:]]).tokens == TOKENS


def test_a_connection_that_the_server_will_close_is_not_kept(connection):
    _, stream = recorded()
    deliver(connection, [stream.replace(b"chunked\r\n", b"chunked\r\nconnection: close\r\n", 1)])
    assert not connection[0].open
    assert connection[1].closed


def test_an_answer_that_breaks_off_is_reported_with_whether_any_of_it_had_come(connection):
    exchange = deliver(connection, [])
    connection[1].protocol.connection_lost(None)
    assert exchange.cause == ("the server closed the connection", False)
    _, stream = recorded()
    exchange = deliver(connection, [stream[:400], stream[400:600]])
    connection[1].protocol.connection_lost(ConnectionResetError())
    assert exchange.cause == ("the connection broke: ConnectionResetError", True)


def test_the_same_tokens_come_out_of_a_whole_answer():
    choice = b'{"text":"\\"token_ids\\":[9]","token_ids":[11,0],"finish_reason":"stop"}'
    body = b'{"choices":[%b],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
    assert whole_answer(body % choice, 3, LIMITS).tokens.tolist() == [11, 0]


# --- requests for completions, as a server gets them


IDS = Dialect()
SERVE = Dialect(prompts=Prompts.TEXT, usage=True, done=False, left_out=["min_tokens", "top_k"])


def test_the_request_is_greedy_and_asks_for_exact_tokens():
    body = json.loads(completion_body(Sampling("tiny", 128, 2, 1), PROMPT))
    assert body == {
        "model": "tiny",
        "prompt": PROMPT,
        "max_tokens": 128,
        "min_tokens": 2,
        "temperature": 0,
        "top_p": 1,
        "top_k": 1,
        "seed": 42,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert "stream" not in json.loads(completion_body(Sampling("tiny", 128, 2, 0), PROMPT))
    assert json.loads(completion_body(Sampling("tiny", 128, 2, 16), PROMPT))["stream_interval"] == 16
    drawn = json.loads(completion_body(Sampling("tiny", 128, 2, 0, temperature=1, top_k=-1, seed=None), PROMPT))
    assert (drawn["temperature"], drawn["top_p"], drawn["top_k"]) == (1, 1, -1)
    assert "seed" not in drawn and "stop" not in drawn


@pytest.mark.parametrize("api", [Api.COMPLETIONS, Api.GENERATE])
def test_a_text_that_ends_an_answer_is_asked_for_and_kept(api):
    body = json.loads(completion_body(Sampling("tiny", 128, 2, 0, api, stop=("\n```\n",)), PROMPT))
    asked = body if api is Api.COMPLETIONS else body["sampling_params"]
    assert asked["stop"] == ["\n```\n"] and asked["include_stop_str_in_output"] is True
    assert asked.get("detokenize", True) is True  # it is found in text


def test_a_request_has_what_the_server_takes():
    sampling = Sampling("m", 16, 2, 1)
    body = json.loads(text_completion_body(sampling, SERVE, "a prompt"))
    assert body["prompt"] == "a prompt"
    assert body["stream"]
    assert body["max_tokens"] == 16
    assert body["temperature"] == 0
    assert not {"min_tokens", "top_k", "return_token_ids", "stream_interval"} & set(body)
    body = json.loads(text_completion_body(Sampling("m", 16, 2, 0), IDS, [1, 2]))
    assert body["prompt"] == [1, 2]
    assert "stream" not in body
    body = json.loads(text_completion_body(sampling, Dialect(prompts=Prompts.CHAT), "a prompt"))
    assert body["messages"] == [{"role": "user", "content": "a prompt"}]
