"""Servers that are odd and legal pass the probe and the run alike; what makes a figure wrong is refused or said."""

import asyncio
import gzip
import json

import pytest
import uvloop
from driven_client import drive, exactly_once
from fake_vllm import Behaviour, FakeVllm, Fault, answer_content, expected_tokens, http, stream_events
from msgspec.structs import replace
from word_runs import SAMPLES, expected, logged

from cm4vllm.common.errors import RunFailed, ServerUnsuitable
from cm4vllm.loadgen.client.connection import Address, Server
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.doubts import client_doubts
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.server import Api
from cm4vllm.serving.probing.server_probe import probe
from cm4vllm.serving.probing.text_servers import check_tokenizer
from text_server import TextServer, answer_words

PAGES = {
    "/v1/models": json.dumps({"data": [{"id": "tiny", "max_model_len": 2048, "owned_by": "vllm"}]}),
    "/version": '{"version": "0.32.0"}',
}


def served(make_settings, server, scenario, mode="performance", **more):
    """Return the settings of a run against a server that lists ids, as the probe records it."""
    made = make_settings(server.endpoint, scenario, mode, **more)
    return replace(made, server=probe(server.endpoint))


# --- Streams that are odd and legal ----------------------------------------------------------------------------------


def document(event):
    return json.loads(event.removeprefix(b"data: "))


def changed(event, **changes):
    """Return an event whose document, or whose choice, has these fields in the place of its own."""
    if event.startswith(b"data: ["):
        return event
    value = document(event)
    for choice in value.get("choices") or ():
        choice |= {name: changes[name] for name in ("finish_reason", "index") if name in changes and not choice[name]}
    value |= {name: change for name, change in changes.items() if name not in ("finish_reason", "index")}
    return b"data: %b\n\n" % json.dumps(value).encode()


def without_choices(event):
    value = document(event) if event.startswith(b"data: {") else {"choices": 1}
    return event if value["choices"] else changed(event, choices=None)


ODD = {
    "finish_reason is empty": lambda event: changed(event, finish_reason=""),
    "choices are null": without_choices,
    "pings": lambda event: b'event: ping\ndata: {"type": "ping"}\n\n' + event,
    "nothing behind data": lambda event: b"data:\n\n" + event,
    "index and error": lambda event: changed(event, index=None, error={}),
    "NaN": lambda event: changed(event, x=float("nan")),
    "a byte order mark": lambda event: event,
}


def test_odd_streams_pass_the_probe_and_the_run(tmp_path, make_settings):
    probed = ""

    def raw(number, body):
        if not body.get("stream"):
            return None
        name = probed or list(ODD)[number % len(ODD)]
        tokens = expected_tokens(body["prompt"], body["max_tokens"], body["min_tokens"])
        content = b"".join(map(ODD[name], stream_events(body, tokens, Behaviour(), Fault.NONE)))
        return http(b"\xef\xbb\xbf" * (name == "a byte order mark") + content)

    with FakeVllm(Behaviour(pages=PAGES, raw=raw)) as server:
        for probed in (*ODD, ""):  # noqa: B007 (read by `raw`)
            settings = served(make_settings, server, "Server")
        record = run(settings, tmp_path / "run")
    assert (record.client.failed, record.client.completed) == (0, record.client.requests)


def odd_text(value):
    """Return a document of a server that gives text, as odd as it may be."""
    for choice in value.get("choices") or ():
        choice |= {"index": None, "finish_reason": choice.get("finish_reason") or ""}
    usage = value.get("usage") or {"completion_tokens": None, "prompt_tokens": None}
    usage = {
        name: count if count is None or name.endswith("details") else float(count) for name, count in usage.items()
    }
    return {**value, "usage": {**usage, "prompt_tokens_details": []}, "error": {}, "x": float("inf")}


@pytest.mark.parametrize(("scenario", "api"), [("Offline", Api.COMPLETIONS), ("Server", Api.CHAT)])
def test_odd_answers_in_text_pass_the_probe_and_the_run(tmp_path, settings_for, api, scenario):
    with TextServer(chat=api is Api.CHAT, takes_text=api is not Api.CHAT, odd=odd_text) as server:
        run(settings_for(server, scenario, api=api), tmp_path / "run")
    assert logged(tmp_path / "run") == {index: expected(index) for index in range(SAMPLES)}


@pytest.mark.parametrize(("scenario", "version"), [("Offline", b"HTTP/1.0"), ("Server", b"HTTP/1.1")])
def test_answers_that_end_with_the_connection_are_whole(tmp_path, make_settings, scenario, version):
    def raw(number, body):
        tokens = expected_tokens(body["prompt"], body["max_tokens"], body["min_tokens"])
        content = answer_content(body, tokens, streamed="stream" in body)
        return version + b" 200 OK\r\ncontent-type: text/plain\r\n\r\n" + content

    with FakeVllm(Behaviour(pages=PAGES, raw=raw, answers_each=1)) as server:
        record = run(
            served(make_settings, server, scenario, stream_interval=int(scenario == "Server")), tmp_path / "run"
        )
    assert (record.client.failed, record.client.retries) == (0, 0)


@pytest.mark.parametrize("stream_interval", [0, 1])
def test_an_answer_that_ends_too_early_with_the_connection_is_named(stream_interval):
    def raw(number, body):
        tokens = expected_tokens(body["prompt"], body["max_tokens"], body["min_tokens"])
        events = b"".join(stream_events(body, tokens, Behaviour(), Fault.NONE)[:-1])
        return b"HTTP/1.0 200 OK\r\n\r\n" + (events if stream_interval else b'{"choices": [')

    with FakeVllm(Behaviour(raw=raw, answers_each=1)) as server:
        _, ledger = drive(server, [1], stream_interval=stream_interval)
    assert ledger.causes[1].endswith(": the server closed the connection")


# --- Connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answers_each", "stream_interval"), [(1, 0), (1, 1), (5, 1)])
def test_connections_that_close_unannounced_cost_no_request(answers_each, stream_interval):
    with FakeVllm(Behaviour(answers_each=answers_each)) as server:
        client, ledger = drive(server, range(300), stream_interval=stream_interval, max_in_flight=16)
    exactly_once(ledger, range(300))
    assert ledger.causes == {}
    assert client.counts.retries == 0
    assert len(server.bodies) == 300


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_tls_connections_that_end_without_its_close_cost_no_request(certificate, loop):
    behaviour = Behaviour(answers_each=3, cut=True, certificate=str(certificate))
    with FakeVllm(behaviour) as server:
        client, ledger = drive(server, range(60), max_in_flight=4, ca_file=str(certificate), loop=loop)
    exactly_once(ledger, range(60))
    assert ledger.causes == {}
    assert client.counts.retries == 0


@pytest.mark.parametrize(("clients", "at_a_time"), [(1, 16), (8, 2), (64, 1)])
@pytest.mark.parametrize("spare", [0, 40])
def test_the_clients_of_a_run_share_the_connections_of_a_step(clients, at_a_time, spare):
    """Spare connections are opened before the run, those of requests as these come."""
    opening, most = 0, 0

    async def script(send, client):
        [server] = client._servers
        server.address.connect_s = 0.0
        server.openings = Server(server.address, b"", clients).openings
        connect = server.address.connect

        async def counted(connection):
            nonlocal opening, most
            opening += 1
            most = max(most, opening)
            await connect(connection)
            opening -= 1

        server.address.connect = counted
        await client.prepare()
        if not spare:
            await send(range(60))

    with FakeVllm() as server:
        client, ledger = drive(
            server, [], script=script, clients=clients, spare=spare, max_in_flight=None if spare else 60
        )
    assert ledger.causes == {} and client.counts.connections >= 40
    assert most == at_a_time


HINTS = b"HTTP/1.1 103 Early Hints\r\nretry-after: x\r\n\r\n"


@pytest.mark.parametrize(
    ("status", "named", "pieces", "begin"),
    [
        (503, "0.2", 0, b""),
        (429, "Sun, 06 Nov 2094 08:49:37 GMT", 0, b""),
        (429, "1", 40, b""),
        (504, "0.2", 30, HINTS),
    ],
)
def test_a_busy_server_is_asked_again_when_it_says_in_an_accuracy_run(monkeypatch, status, named, pieces, begin):
    monkeypatch.setattr("cm4vllm.loadgen.client.client.LONGEST_WAIT_S", 0.3)
    refused = b"%bHTTP/1.1 %d Not Now\r\nserver: x\r\nRetry-After: %b\r\ncontent-length: 0\r\n\r\n"
    refused %= begin, status, named.encode()
    busy = Behaviour()

    def raw(number, body):
        refuses = server._in_flight > 8 or number < 10
        busy.split = pieces if refuses else 0
        return refused if refuses else None

    busy.raw, busy.token_delay_s = raw, 0.001
    with FakeVllm(busy) as server:
        client, ledger = drive(server, range(50), max_in_flight=16, patient=True)
    exactly_once(ledger, range(50))
    assert ledger.causes == {} and client.counts.retries >= 10


@pytest.mark.parametrize(("stream_interval", "encoding"), [(1, "gzip"), (0, "Deflate"), (1, "identity")])
def test_answers_that_a_gateway_compresses_are_named(stream_interval, encoding):
    def raw(number, body):
        content = answer_content(body, [1, 2, 3], streamed="stream" in body)
        content = content if encoding == "identity" else gzip.compress(content)
        return http(content, head=b"Content-Encoding: %b\r\n" % encoding.encode())

    with FakeVllm(Behaviour(raw=raw)) as server:
        _, ledger = drive(server, [1], stream_interval=stream_interval)
    if encoding == "identity":
        assert ledger.causes == {}
    else:
        assert ledger.causes[1] == f"the answer is compressed ({encoding.lower()}), and was asked for as it is"


def test_answers_are_asked_for_as_they_are():
    assert b"\r\nAccept-Encoding: identity\r\n" in Address("http://host:1", "127.0.0.1", 1).head("/v1/completions")


def test_a_measured_run_does_not_wait_for_a_busy_server_and_names_the_flag(tmp_path, make_settings):
    refused = http(b"", "429 Too Many Requests", b"Retry-After: 1\r\n")
    with FakeVllm(Behaviour(raw=lambda number, body: refused)) as server:
        for scenario, flag in (("Offline", "--max_in_flight"), ("Server", "--server_target_qps")):
            with pytest.raises(RunFailed) as caught:
                run(make_settings(server.endpoint, scenario, "performance"), tmp_path / scenario)
            assert "HTTP status 429" in caught.value.cause and flag in caught.value.remedy


# --- What is stated of prompts and of the model ----------------------------------------------------------------------


CACHED = [
    {"prompt_tokens_details": {"cached_tokens": 15}},
    {"prompt_cache_hit_tokens": 1},
    {"cached_tokens": 3.0},
    {"cache_read_input_tokens": 15},
    {"input_tokens_details": {"cached_tokens": 15}},
]


def test_tokens_out_of_a_cache_are_refused_by_the_probe_and_make_a_run_invalid(tmp_path, make_settings):
    with FakeVllm(Behaviour(pages=PAGES)) as server:
        settings = served(make_settings, server, "Offline")
        server.behaviour.usage = lambda number: CACHED[number % len(CACHED)]
        [fault] = run(settings, tmp_path / "run").faults
        for cached in CACHED:
            server.behaviour.usage = lambda number, cached=cached: cached
            with pytest.raises(ServerUnsuitable, match="caches prompt prefixes"):
                probe(server.endpoint)
    assert "prompt tokens from a cache" in fault


@pytest.mark.parametrize("habits", [{"takes_ids": True}, {}, {"chat": True, "takes_text": False}])
def test_tokens_out_of_a_cache_are_refused_by_the_probe_of_text(settings_for, habits):
    with TextServer(**habits, cached=15) as server, pytest.raises(ServerUnsuitable, match="caches prompt prefixes"):
        settings_for(server, "Offline", api=Api.CHAT if "chat" in habits else Api.COMPLETIONS)


def test_another_name_of_the_model_in_the_answers_makes_a_run_invalid(tmp_path, make_settings):
    with FakeVllm(Behaviour(pages=PAGES)) as server:
        settings = served(make_settings, server, "Server")
        assert settings.server.answered_by == "tiny"
        server.behaviour.model = lambda number: "tiny" if number < 30 else "tiny-int4"
        record = run(settings, tmp_path / "run")
    [fault] = record.faults
    assert "tiny-int4 (" in fault and "those of the probe tiny" in fault
    assert not says_much_comes_first(record) and 0 < record.client.first_event_tokens <= 1


def test_several_names_are_seen_without_a_probe_and_in_text(tmp_path, settings_for):
    with TextServer() as server:
        settings = settings_for(server, "Server", "performance")
        settings = replace(settings, server=replace(settings.server, answered_by=""))
        server.model = lambda number: "ab"[number % 2]
        [fault] = run(settings, tmp_path / "run").faults
    assert "a (" in fault and "b (" in fault


@pytest.mark.parametrize(
    ("chat", "cut"),
    [(False, lambda number, tokens: min(10, tokens)), (True, lambda number, tokens: tokens - (number % 40 == 9))],
)
def test_prompts_that_are_cut_fail_the_run(tmp_path, settings_for, cut, chat):
    with TextServer(chat=chat, takes_text=not chat) as server:
        settings = settings_for(server, "Offline", api=Api.CHAT if chat else Api.COMPLETIONS)
        server.reads = cut
        with pytest.raises(RunFailed) as caught:
            run(settings, tmp_path / "run")
    assert "the server counts fewer prompt tokens than were sent" in caught.value.cause


def test_the_tokens_that_begin_and_end_each_prompt_are_said_with_the_constant(tmp_path, settings_for):
    with TextServer(template_tokens=2) as server:
        record = run(settings_for(server, "Offline", "performance"), tmp_path / "run")
    assert any("2 more in each" in doubt for doubt in client_doubts(record))
    assert record.faults == ()


def test_a_template_that_adds_unequal_numbers_is_said(tmp_path, settings_for):
    with TextServer(chat=True, takes_text=False, template_tokens=30) as server:
        settings = settings_for(server, "Offline", "performance", api=Api.CHAT)
        server.reads = lambda number, tokens: tokens - 12 * (number % 10 == 5)
        record = run(settings, tmp_path / "cut")
    assert any("18 to 30 more tokens of a prompt" in doubt for doubt in client_doubts(record))


# --- What tokens and times are made of -------------------------------------------------------------------------------


def says_much_comes_first(record):
    return any("first event" in doubt for doubt in client_doubts(record))


def test_many_tokens_in_the_first_event_are_said(tmp_path, make_settings):
    with FakeVllm(Behaviour(first_tokens=4, tokens_per_chunk=4)) as server:
        record = run(make_settings(server.endpoint, "Server", "performance"), tmp_path / "run")
    assert says_much_comes_first(record)
    assert 1 < record.client.first_event_tokens <= 4


def test_much_text_in_the_first_event_is_said(tmp_path, settings_for):
    with TextServer() as server:
        settings = settings_for(server, "Server", "performance")
        server.together = 4
        record = run(settings, tmp_path / "run")
    assert says_much_comes_first(record)


def test_the_time_from_the_last_token_to_the_end_is_stated(tmp_path, settings_for):
    with TextServer() as server:
        settings = settings_for(server, "Server", "performance")
        server.last_delay_s = 0.15
        record = run(settings, tmp_path / "run")
    assert not says_much_comes_first(record)
    assert record.client.end_lag_ms is not None
    # The client may have seen the last token some ms after the server had sent it.
    assert record.client.end_lag_ms >= 100
    assert any("after its last token" in doubt for doubt in client_doubts(record))
    processes = [
        replace(process, end_lag=process.end_lag and replace(process.end_lag, p50_ms=5.0))
        for process in record.client.processes
    ]
    soon = replace(record, client=replace(record.client, processes=processes))
    assert not any("after its last token" in doubt for doubt in client_doubts(soon))


@pytest.mark.parametrize(
    ("scenario", "counts_end", "takes"), [("Offline", True, ()), ("Server", False, ("min_tokens",))]
)
def test_empty_answers_of_an_accuracy_run_are_logged_as_empty(tmp_path, settings_for, scenario, counts_end, takes):
    refused = tuple(name for name in TextServer().refuses if name not in takes)
    with TextServer(counts_end=counts_end, refuses=refused) as server:
        settings = settings_for(server, scenario)
        before = len(server.bodies)
        server.empty = lambda number: number - before in (3, 20, 40)
        record = run(settings, tmp_path / "run")
    answers = logged(tmp_path / "run")
    assert len(answers) == SAMPLES and record.client.failed == 0
    assert sum(not ids for ids in answers.values()) == 3
    assert all(ids == expected(index) for index, ids in answers.items() if ids)


@pytest.mark.parametrize(("scenario", "counted"), [("Offline", 0), ("Server", 1)])
def test_empty_lists_of_ids_in_an_accuracy_run_are_logged_as_empty(tmp_path, make_settings, scenario, counted):
    def raw(number, body):
        if number % 10 != 3 or not began:
            return None
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": counted}
        choice = {"index": 0, "token_ids": [], "finish_reason": "stop"}
        content = json.dumps({"choices": [choice], "usage": usage}).encode()
        if body.get("stream"):
            content = b"data: %b\n\ndata: [DONE]\n\n" % content
        return http(content)

    began = False
    with FakeVllm(Behaviour(pages=PAGES, raw=raw)) as server:
        settings = served(
            make_settings, server, scenario, "accuracy", stream_interval=16 if scenario == "Server" else 0
        )
        began = True
        record = run(settings, tmp_path / "run")
        asked = [body for body in server.bodies if body["max_tokens"] == settings.max_tokens]
        if scenario == "Offline":
            with pytest.raises(RunFailed, match="requests of the"):
                run(served(make_settings, server, scenario), tmp_path / "performance")
    answers = logged(tmp_path / "run")
    assert record.client.failed == 0 and len(answers) <= len(asked)
    assert 0 < sum(not ids for ids in answers.values()) < len(answers) / 5


@pytest.mark.parametrize("empty", [range(10**6), range(10, 12)])
def test_times_of_answers_of_one_token_are_named_and_left_out(tmp_path, settings_for, empty):
    with TextServer() as server:
        settings = settings_for(server, "Server", "performance", target_qps=200)
        server.empty = lambda number: number in empty
        run(settings, tmp_path / "run")
    result = read_performance(tmp_path / "run")
    assert "answers of one token" in result.note
    assert all(value >= 0 for name, value in result.figures.items() if name.startswith("tpot"))
    assert "tpot_mean" not in result.figures


def test_tokens_of_a_format_are_no_other_tokenizer(tmp_path, settings_for, words, monkeypatch):
    monkeypatch.setattr("text_server.answer_words", lambda prompt, most: answer_words(prompt, 100))
    with TextServer(counts_end=False) as server:
        settings = settings_for(server, "Offline", "performance")
        server.extra = lambda count: 10 if count else 1
        check_tokenizer(settings.server, words[1])
        begun = len(server.bodies)
        server.empty = lambda number: number == begun + 20
        record = run(settings, tmp_path / "run")
    assert record.client.text.difference < 0.02


@pytest.mark.parametrize(
    ("habits", "said"),
    [
        (
            {"usage": {"completion_tokens": 60, "completion_tokens_details": {"reasoning_tokens": 40}}},
            "reasoning tokens",
        ),
        ({"usage": {"completion_tokens": 60}}, "does not serve"),
    ],
)
def test_text_that_is_not_sent_is_named_before_the_run(settings_for, words, habits, said):
    with TextServer() as server:
        settings = settings_for(server, "Offline")
        server.usage, server.empty = habits["usage"], lambda number: True
        with pytest.raises(ServerUnsuitable) as caught:
            check_tokenizer(settings.server, words[1])
    assert said in f"{caught.value} {caught.value.cause}"
