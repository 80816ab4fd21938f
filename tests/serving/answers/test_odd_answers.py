"""Odd and legal answers: read alike of servers that list ids and of those that give text."""

import json

import pytest

from cm4vllm.records.server import Dialect, Prompts
from cm4vllm.serving.answers.event_stream import AnswerError
from cm4vllm.serving.answers.id_answers import StreamReader, whole_answer
from cm4vllm.serving.answers.stated import AnswerLimits
from cm4vllm.serving.answers.text_answers import TextReader, whole_text

LIMITS = AnswerLimits(min_tokens=1, max_tokens=8, max_model_len=2048)
DONE = b"data: [DONE]\n\n"
BOM = b"\xef\xbb\xbf"
FORMS = ["ids", "text", "chat"]


def choice(form, word, reason=None):
    if form == "chat":
        return {"index": 0, "delta": {"content": word}, "finish_reason": reason}
    return {"index": 0, "text": word, "token_ids": [len(word)] if word else [], "finish_reason": reason}


def usage(**more):
    return {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, **more}


def documents(form):
    """Return the events of an answer of two tokens."""
    return [
        {"model": "m", "choices": [choice(form, "a")], "usage": None},
        {"model": "m", "choices": [choice(form, "bb", "stop")], "usage": None},
        {"model": "m", "choices": [], "usage": usage()},
    ]


def event(document):
    return b"data: %b\n\n" % (document if isinstance(document, bytes) else json.dumps(document).encode())


def streamed(some):
    return b"".join(map(event, some)) + DONE


def read(form, stream, size=None, prompt_tokens=3):
    """Return the content of a streamed answer, ids or text, and what the server states of it."""
    reader = StreamReader() if form == "ids" else TextReader(Dialect(prompts=Prompts.CHAT))
    size = size or len(stream)
    firsts = []
    for at in range(0, len(stream), size):
        first = reader.feed(stream[at : at + size])
        firsts += [] if first is None else [first]
        if at % 3 == 0:
            reader.compact()
    answer = reader.finish(prompt_tokens, LIMITS)
    assert len(firsts) == 1
    return (answer.tokens.tolist() if form == "ids" else answer.text), answer.stated


def expected(form):
    return [1, 2] if form == "ids" else "abb"


def with_choice(**changes):
    return lambda docs: [
        {
            **doc,
            "choices": [{**choice, **changes} if not choice["finish_reason"] else choice for choice in doc["choices"]],
        }
        for doc in docs
    ]


def with_usage(**more):
    return lambda docs: [*docs[:-1], {**docs[-1], "usage": usage(**more)}]


def in_each(**more):
    return lambda docs: [{**doc, **more} for doc in docs]


ODD_DOCUMENTS = {
    "finish_reason is empty until the end": with_choice(finish_reason=""),
    "finish_reason is the word null": with_choice(finish_reason="null"),
    **{
        f"finish_reason is {value!r} until the end": with_choice(finish_reason=value)
        for value in ("None", " ", False, "NULL", 0, {}, [])
    },
    **{f"index is {value!r}": with_choice(index=value) for value in (0.0, "0", "0.0", "", False)},
    "index is text in each event": lambda docs: with_choice(index="0")(
        [{**doc, "choices": [{**choice, "index": "0"} for choice in doc["choices"]]} for doc in docs]
    ),
    "finish_reason is empty after the end": lambda docs: [*docs[:2], {"choices": [choice("ids", "", "")]}, docs[2]],
    "the usage has no choices": lambda docs: [*docs[:2], {"usage": usage()}],
    **{
        f"the usage has choices {value!r}": lambda docs, value=value: [*docs[:2], {"choices": value, "usage": usage()}]
        for value in ({}, False, "")
    },
    "a message before the answer": lambda docs: [{"message": "queued"}, *docs],
    "a message between": lambda docs: [docs[0], {"type": "status", "message": {"code": 0}}, *docs[1:]],
    "a message that is a ping": lambda docs: [docs[0], {"type": "ping", "message": "keep-alive"}, *docs[1:]],
    "delta is a list": lambda docs: [*docs[:2], {"choices": [{"index": 0, "delta": []}]}, docs[2]],
    "delta is text": lambda docs: [*docs[:2], {"choices": [{"index": 0, "delta": ""}]}, docs[2]],
    "choices are null": lambda docs: [*docs[:2], {"choices": None, "usage": usage()}],
    "an event without anything": lambda docs: [{}, *docs],
    "a first event of a content filter": lambda docs: [
        {"choices": [], "model": "", "prompt_filter_results": []},
        *docs,
    ],
    "index is null": with_choice(index=None),
    "counts are null until the end": lambda docs: [
        {**docs[0], "usage": {"prompt_tokens": None, "completion_tokens": None}},
        *docs[1:],
    ],
    "counts are null again behind the end": lambda docs: [*docs, {"choices": [], "usage": {"completion_tokens": None}}],
    "counts are floats": with_usage(prompt_tokens=3.0, completion_tokens=2.0),
    "counts are texts": with_usage(prompt_tokens="3", completion_tokens="2"),
    "details are a list": with_usage(prompt_tokens_details=[], completion_tokens_details=[]),
    "details are null": with_usage(prompt_tokens_details=None),
    "details have an odd count": with_usage(prompt_tokens_details={"cached_tokens": "none"}),
    "a usage that is text": lambda docs: [{**docs[0], "usage": ""}, *docs[1:]],
    "a usage in each event": lambda docs: [{**doc, "usage": usage()} for doc in docs],
    "error is empty": in_each(error=""),
    "error is an empty object": in_each(error={}),
    "error is false": in_each(error=False),
    "error has null alone": in_each(error={"message": None, "code": None}),
    "error has empty fields": in_each(error={"message": "", "code": 0, "type": "null", "param": {}}),
    "error is the word null": in_each(error="null"),
    "error is the word none": in_each(error=" None "),
    "error is an empty list": in_each(error=[]),
    "reasoning is an empty object": with_choice(reasoning={}, reasoning_content=[]),
    "reasoning is false": with_choice(reasoning=False, delta={"content": "a", "reasoning": {}}),
    "counts are empty behind the end": lambda docs: [*docs, {"choices": [], "usage": {"completion_tokens": ""}}],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", ODD_DOCUMENTS.values(), ids=ODD_DOCUMENTS)
def test_odd_documents_are_read(form, change):
    stream = streamed(change(documents(form)))
    for size in (None, 1, 33):
        content, stated = read(form, stream, size)
        assert content == expected(form)
        assert (stated.prompt_tokens, stated.tokens, stated.cached_tokens) == (3, 2, 0)


def between(form, extra):
    """Return a stream with `extra` bytes between its events."""
    first, *rest = map(event, documents(form))
    return first + extra + b"".join(rest) + DONE


ODD_STREAMS = {
    "a byte order mark": lambda form: BOM + streamed(documents(form)),
    "data with nothing behind it": lambda form: between(form, b"data:\n\n"),
    "data without a colon": lambda form: between(form, b"data\n\n"),
    "data with a space alone": lambda form: b"data: \n\n" + streamed(documents(form)),
    "a ping with JSON": lambda form: between(form, b'event: ping\ndata: {"type": "ping"}\n\n'),
    "a ping with JSON that has a cost": lambda form: between(form, b'event: ping\ndata: {"cost": "0"}\n\n'),
    "a heartbeat that is no JSON": lambda form: between(form, b"event: heartbeat\ndata: still here\n\n"),
    "a ping with a message": lambda form: between(
        form, b'event: ping\ndata: {"type":"ping","message":"keep-alive"}\n\n'
    ),
    "a ping without an error": lambda form: between(form, b'event: ping\ndata: {"error":"none"}\n\n'),
    "a first event that is a ping with choices": lambda form: (
        b"event: ping\n" + event({"choices": [choice(form, "x" * 7)]}) + streamed(documents(form))
    ),
    "a ping with choices": lambda form: between(form, b"event: keepalive\n" + event({"choices": [choice(form, "xx")]})),
    "a ping with an error": lambda form: between(form, b'event:status\ndata:{"error":{"message":"busy"}}\n\n'),
    "a ping behind the end": lambda form: streamed(documents(form)) + b'event: ping\ndata: {"message": "x"}\n\n',
    "an end with a name": lambda form: b"".join(map(event, documents(form))) + b"event: done\n" + DONE,
    "data that is null": lambda form: between(form, b"data: null\n\n"),
    "data that is an empty list": lambda form: between(form, b"data: []\n\n"),
    "data that is false": lambda form: event(b"false") + streamed(documents(form)),
    "a field of another name": lambda form: between(form, b"foo: bar\n\n"),
    "fields of other names in an event": lambda form: (
        b'x-request-id: {"error": "none"}\ntime\n' + between(form, b"error:\nErrors: 0\nretry\n: \n")
    ),
    "a line without a field": lambda form: between(form, b"still here\n"),
    "a comment": lambda form: between(form, b": OPENROUTER PROCESSING\n\n"),
    "a comment as data": lambda form: between(form, b"data: : OPENROUTER PROCESSING\n\n"),
    "a ping with a date": lambda form: between(form, b"event: ping\ndata: 2023-02-20 08:40:33.556053\n\n"),
    "a ping with empty JSON text": lambda form: between(form, b'event: ping\ndata: ""\n\n'),
    "a comment behind the end": lambda form: streamed(documents(form)) + b": bye\n\n",
    "a second [DONE]": lambda form: streamed(documents(form)) + DONE,
    "a document of several lines": lambda form: (
        b"".join(
            b"".join(b"data: %b\n" % line for line in json.dumps(doc, indent=1).encode().split(b"\n")) + b"\n"
            for doc in documents(form)
        )
        + DONE
    ),
    "no empty lines": lambda form: streamed(documents(form)).replace(b"\n\n", b"\n"),
    "no empty line at the end": lambda form: streamed(documents(form)).rstrip(b"\n"),
    "NaN elsewhere": lambda form: streamed(in_each(logprob=float("nan"))(documents(form))),
    "Infinity elsewhere": lambda form: streamed(in_each(timings={"per_s": float("inf")})(documents(form))),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", ODD_STREAMS.values(), ids=ODD_STREAMS)
def test_odd_streams_are_read(form, make):
    stream = make(form)
    for size in (None, 1, 29):
        assert read(form, stream, size)[0] == expected(form)


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_answer_is_read_with_the_same_oddities(form):
    part = "message" if form == "chat" else "text"
    body = {
        "error": {},
        "choices": [{"index": None, part: {"content": "abb"} if form == "chat" else "abb"}],
        "x": "NaN",
    }
    body["choices"][0] |= {"finish_reason": "stop", "token_ids": [1, 2]}
    body["usage"] = usage(prompt_tokens=3.0, prompt_tokens_details=[])
    raw = BOM + json.dumps(body).replace('"NaN"', "NaN").encode()
    if form == "ids":
        assert whole_answer(raw, 3, LIMITS).tokens.tolist() == [1, 2]
    else:
        assert whole_text(raw, 3, LIMITS, Dialect(prompts=Prompts.TEXT)).text == "abb"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (lambda docs: streamed(with_usage(completion_tokens=2.5)(docs)), "is no number of tokens"),
        (lambda docs: streamed(with_usage(completion_tokens="two")(docs)), "is no number of tokens"),
        (lambda docs: streamed(with_usage(completion_tokens=float("inf"))(docs)), "is no number of tokens"),
        (lambda docs: streamed(with_usage(completion_tokens=True)(docs)), "is no number of tokens"),
        (lambda docs: streamed(with_usage(completion_tokens=None)(docs)), "no usage.completion_tokens"),
        (lambda docs: streamed(in_each(error={"message": "out of memory"})(docs)), "out of memory"),
        (lambda docs: streamed([{"object": "error", "message": "gone"}, *docs]), "gone"),
        (lambda docs: event(docs[0]) + b'event: error\ndata: {"x": 1}\n\n' + DONE, "error event"),
        (lambda docs: event(docs[0]) + b"event: message\ndata: still here\n\n" + DONE, "not a completion in JSON"),
        (lambda docs: streamed(docs) + event(docs[0]), "goes on after"),
        (lambda docs: streamed([*docs[:1], {"message": "no memory is left", "type": "OutOfMemoryError"}]), "memory is"),
        (lambda docs: streamed([{"statusCode": 429, "message": "Rate limit is exceeded"}, *docs]), "Rate limit"),
        (lambda docs: streamed([{"message": "quota is used up"}]), "the server answered: quota is used up"),
        (lambda docs: event({"message": "quota is used up"}), "the server answered: quota is used up"),
        (lambda docs: streamed(in_each(error={"code": 500, "message": None})(docs)), "500"),
        (lambda docs: streamed(with_choice(index="1")(docs)), "more than one choice"),
        (lambda docs: streamed(with_choice(index=1.0)(docs)), "more than one choice"),
        (lambda docs: event(docs[0]) + b'event: error\ndata: {"message": "none"}\n\n' + DONE, "error event"),
        (lambda docs: streamed(with_choice(finish_reason=True)(docs)), "goes on after"),
    ],
)
def test_what_is_wrong_is_still_refused(form, stream, words):
    with pytest.raises(AnswerError, match=words):
        read(form, stream(documents(form)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("named", ["stop", "eos_token", "stop_sequence", "eos", "STOP", "end_turn", "COMPLETE"])
def test_the_words_of_other_servers_for_an_end_by_a_token(form, named):
    docs = documents(form)
    docs[1]["choices"][0]["finish_reason"] = named
    assert read(form, streamed(docs))[0] == expected(form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("named", ["length", "LENGTH", "MAX_TOKENS", "model_length"])
def test_the_words_of_other_servers_for_an_end_at_the_length(form, named):
    docs = documents(form)
    docs[1]["choices"][0]["finish_reason"] = named
    with pytest.raises(AnswerError, match="'length' before max_tokens"):
        read(form, streamed(docs))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "cached",
    [
        {"prompt_tokens_details": {"cached_tokens": 2}},
        {"prompt_cache_hit_tokens": 2, "prompt_cache_miss_tokens": 1},
        {"cached_tokens": 2.0},
        {"cache_read_input_tokens": 2, "cache_creation_input_tokens": 3},
        {"input_tokens_details": {"cached_tokens": "2"}},
        {"prompt_tokens_details": {"cacheReadTokens": 2, "cache_write_tokens": 3}},
        {"cachedContentTokenCount": 2},
    ],
)
def test_cached_tokens_are_read_wherever_a_server_states_them(form, cached):
    assert read(form, streamed(with_usage(**cached)(documents(form))))[1].cached_tokens == 2


@pytest.mark.parametrize("form", FORMS)
def test_the_names_of_the_model_are_those_of_the_first_and_the_last_event(form):
    docs = documents(form)
    named, silent = [*docs[:-1], {**docs[-1], "model": "other"}], in_each(model=None)(docs)
    for events, names in ((docs, ("m",)), (named, ("m", "other")), (silent, ())):
        assert read(form, streamed(events))[1].models == names


def test_a_reader_of_ids_knows_how_many_came_with_the_first_event():
    docs = documents("ids")
    docs[0]["choices"][0]["token_ids"] = [1, 1, 1]
    docs[2]["usage"]["completion_tokens"] = 4
    for size in (10_000, 1):
        reader = StreamReader()
        stream = streamed([{"choices": []}, *docs])
        for at in range(0, len(stream), size):
            reader.feed(stream[at : at + size])
            reader.compact()
        assert reader.finish(3, LIMITS).first_tokens == 3


# --- Text that has fewer tokens than are counted ---------------------------------------------------------------------


def test_a_content_that_is_a_list_of_parts_is_text():
    docs = documents("chat")
    docs[0]["choices"][0]["delta"]["content"] = [{"type": "text", "text": "a"}]
    docs[1]["choices"][0]["delta"]["content"] = ["b", {"type": "text", "text": "b"}, {"type": "image_url"}]
    assert read("chat", streamed(docs))[0] == "abb"


@pytest.mark.parametrize(
    ("delta", "reasoning", "words"),
    [
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, 0, "calls of tools"),
        ({"function_call": {"name": "f"}}, 0, "calls of tools"),
        ({}, 0, ""),
        ({}, 1, "reasoning tokens"),
        ({"reasoning_content": "a", "content": None}, 1, ""),
    ],
)
def test_calls_of_tools_and_reasoning_that_is_not_sent_are_named(delta, reasoning, words):
    docs = with_usage(completion_tokens_details={"reasoning_tokens": reasoning})(documents("chat"))
    docs[0]["choices"][0]["delta"] |= delta
    reader = TextReader(Dialect(prompts=Prompts.CHAT))
    reader.feed(streamed(docs))
    unsent = reader.finish(3, LIMITS).unsent
    assert words in unsent and bool(words) == bool(unsent)


@pytest.mark.parametrize("reason", ["tool_calls", "function_call"])
def test_an_answer_that_is_a_call_of_a_tool_is_named_as_one(reason):
    docs = documents("chat")
    docs[1]["choices"][0]["finish_reason"] = reason
    with pytest.raises(AnswerError, match=rf"a call of a tool \(finish_reason {reason}\)"):
        read("chat", streamed(docs))


# --- Prompts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "counted", "refused"),
    [
        (Prompts.IDS, 4, True),
        (Prompts.IDS, 2, True),
        (Prompts.PICTURE, 4, True),
        (Prompts.PICTURE, 2, True),
        (Prompts.TEXT, 2, True),
        (Prompts.TEXT, 4, False),
        (Prompts.CHAT, 2, True),
        (Prompts.CHAT, 90, False),
        (Prompts.AUDIO, 0, False),
    ],
)
def test_prompt_tokens_are_compared_in_each_answer(prompts, counted, refused):
    docs = with_usage(prompt_tokens=counted)(documents("text"))
    reader = TextReader(Dialect(prompts=prompts))
    reader.feed(streamed(docs))
    if refused:
        with pytest.raises(AnswerError, match="prompt tokens than were sent") as caught:
            reader.finish(3, LIMITS)
        assert caught.value.detail == f"3 were sent, it counts {counted}"
    else:
        assert reader.finish(3, LIMITS).stated.prompt_tokens == counted
