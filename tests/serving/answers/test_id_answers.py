"""Exact tokens out of an answer's bytes, however they arrive."""

import json
import random

import pytest
from fake_vllm import Behaviour, Fault, stream_events

from cm4vllm.serving.answers.event_stream import AnswerError, error_message, refusal_words
from cm4vllm.serving.answers.id_answers import StreamReader, whole_answer
from cm4vllm.serving.answers.stated import AnswerLimits

PROMPT = [5, 6, 7]
BODY = {"model": "tiny", "prompt": PROMPT, "max_tokens": 400}
LIMITS = AnswerLimits(min_tokens=2, max_tokens=400, max_model_len=2048)
TOKENS = [11, 0, 767, 3, 3, 128009, 42]


def recorded(tokens=TOKENS, *, tokens_per_chunk=1, text="w", fault=Fault.NONE):
    return b"".join(stream_events(BODY, tokens, Behaviour(tokens_per_chunk=tokens_per_chunk, text=text), fault))


def read(pieces, *, prompt_tokens=3, limits=LIMITS, compact_every=0):
    """Return the tokens and the first tokens that were told while the pieces came."""
    reader, firsts = StreamReader(), []
    for count, piece in enumerate(pieces):
        first = reader.feed(piece)
        if first is not None:
            firsts.append(first)
        if firsts and compact_every and count % compact_every == 0:
            reader.compact()
    return reader.finish(prompt_tokens, limits).tokens.tolist(), firsts


@pytest.mark.parametrize("tokens_per_chunk", [1, 3, 100])
def test_every_split_of_a_stream_gives_the_same_tokens(tokens_per_chunk):
    stream = recorded(tokens_per_chunk=tokens_per_chunk)
    for cut in range(len(stream) + 1):
        assert read([stream[:cut], stream[cut:]]) == (TOKENS, [11])


def test_random_splits_into_many_pieces_give_the_same_tokens():
    draw = random.Random(3)
    stream = recorded(tokens_per_chunk=2)
    for _ in range(300):
        cuts = sorted(draw.sample(range(1, len(stream)), draw.randint(1, 40)))
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        assert read(pieces) == (TOKENS, [11])
    assert read([stream[i : i + 1] for i in range(len(stream))]) == (TOKENS, [11])


@pytest.mark.parametrize("compact_every", [1, 3, 50])
def test_reducing_a_long_stream_on_the_way_changes_nothing(compact_every):
    stream = recorded(list(range(400)), tokens_per_chunk=3)
    for size in (7, 100, 1013):
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        tokens, firsts = read(pieces, compact_every=compact_every)
        assert tokens == list(range(400))
        assert firsts == [0]


def test_the_first_token_is_told_before_the_rest_has_come_and_not_before_its_end():
    stream = recorded()
    assert StreamReader().feed(stream[: stream.index(b"\n\n") + 2]) == 11
    reader = StreamReader()
    assert reader.feed(b'data: {"choices":[{"token_ids":[12') is None
    assert reader.feed(b"34]") == 1234


def test_generated_text_cannot_pass_for_tokens():
    forged = '"token_ids":[9,9],"usage":{"completion_tokens":99,"prompt_tokens":99},"error":{"m":""}\\ndata: [DONE]'
    assert read([recorded(text=forged)]) == (TOKENS, [11])


def test_spaces_and_crlf_do_not_matter():
    stream = recorded().replace(b"\n\n", b"\r\n\r\n").replace(b":[", b": [ ").replace(b"]}", b" ]}")
    assert read([stream]) == (TOKENS, [11])


def test_a_whole_answer_is_read():
    answer = {
        "choices": [{"token_ids": TOKENS, "prompt_token_ids": PROMPT, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": len(TOKENS)},
    }
    assert whole_answer(json.dumps(answer).encode(), 3, LIMITS).tokens.tolist() == TOKENS


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.WRONG_USAGE, "disagree"),
        (Fault.WRONG_PROMPT, "other prompt tokens"),
        (Fault.NO_IDS, "lists no token_ids"),
        (Fault.NO_DONE, r"without \[DONE\]"),
        (Fault.ERROR_EVENT, "the engine died"),
    ],
)
def test_an_answer_that_does_not_add_up_is_refused(fault, words):
    with pytest.raises(AnswerError, match=words):
        read([recorded(fault=fault)])


def event(**document):
    return b"data: %b\n\n" % json.dumps(document, separators=(",", ":")).encode()


def choice(ids, reason=None, **more):
    return {"index": 0, "text": "w", "finish_reason": reason, "token_ids": ids, **more}


def usage(tokens, prompt_tokens=3):
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + tokens, "completion_tokens": tokens}


DONE = b"data: [DONE]\n\n"


def in_both_forms(choices, *, tokens, **more):
    """Return readers of the same answer: as a whole one, and as a stream of an event a choice."""
    whole = json.dumps(
        {
            "choices": [{**choices[-1], "token_ids": [i for choice in choices for i in choice["token_ids"]]}],
            "usage": usage(tokens),
            **more,
        }
    ).encode()
    stream = (
        b"".join(event(choices=[choice]) for choice in choices) + event(choices=[], usage=usage(tokens), **more) + DONE
    )
    return [
        lambda limits=LIMITS: whole_answer(whole, 3, limits).tokens.tolist(),
        lambda limits=LIMITS: read([stream], limits=limits)[0],
    ]


@pytest.mark.parametrize("form", [0, 1], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ([choice([1]), choice([2], "abort")], "was cut: its finish_reason is 'abort'"),
        ([choice([1]), choice([2], "error")], "was cut: its finish_reason is 'error'"),
        ([choice([1]), choice([2], "content_filter")], "was cut"),
        ([choice([1]), choice([2], "\x1b[31m" + 5000 * "x")], r"was cut: its finish_reason is ' \[31mx{200}"),
        ([choice([1]), choice([2], "")], "no finish_reason"),
        ([choice([1]), choice([2])], "no finish_reason"),
        ([choice([1], "stop")], "fewer tokens than min_tokens"),
        ([choice(list(range(401)), "stop")], "more tokens than max_tokens"),
        ([choice(list(range(401)), "length")], "more tokens than max_tokens"),
        ([choice(list(range(399)), "length")], "'length' before max_tokens"),
    ],
)
def test_an_answer_that_was_cut_is_refused_though_its_counts_match(form, choices, words):
    tokens = sum(len(choice["token_ids"]) for choice in choices)
    with pytest.raises(AnswerError, match=words):
        in_both_forms(choices, tokens=tokens)[form]()


@pytest.mark.parametrize("form", [0, 1], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("count", "reason", "room"), [(2, "stop", 2048), (400, "stop", 2048), (400, "length", 2048), (97, "length", 100)]
)
def test_an_answer_may_end_at_every_length_between_the_bounds(form, count, reason, room):
    limits = AnswerLimits(min_tokens=2, max_tokens=400, max_model_len=room)
    assert in_both_forms([choice(list(range(count)), reason)], tokens=count)[form](limits) == list(range(count))


@pytest.mark.parametrize("form", [0, 1], ids=["whole", "stream"])
@pytest.mark.parametrize("error", [{"message": "the engine died"}, "the engine died", ["the engine died"]])
def test_an_answer_with_an_error_is_refused_though_its_counts_match(form, error):
    with pytest.raises(AnswerError, match="the server answered.*the engine died"):
        in_both_forms([choice([1]), choice([2], "stop")], tokens=2, error=error)[form]()
    assert in_both_forms([choice([1]), choice([2], "stop")], tokens=2, error=None)[form]() == [1, 2]


WHOLE_STREAM = event(choices=[choice([1])]) + event(choices=[choice([2], "stop")]) + event(choices=[], usage=usage(2))


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (event(error={"message": "the engine died"}) + WHOLE_STREAM + DONE, "the engine died"),
        (b"event: error\ndata: {}\n\n" + WHOLE_STREAM + DONE, "error event"),
        (b'{"error": {"message": "the engine died"}}\n\n' + WHOLE_STREAM + DONE, "the engine died"),
        (event(object="error", message="the engine died") + WHOLE_STREAM + DONE, "the engine died"),
        (WHOLE_STREAM + DONE + event(error={"message": "the engine died"}), "goes on after"),
        (WHOLE_STREAM + event(choices=[choice([3])]) + DONE, "goes on after its finish_reason"),
        (WHOLE_STREAM + event(choices=[choice([], "abort")]) + DONE, "goes on after its finish_reason"),
        (b"<p>hello</p>\n\n" + WHOLE_STREAM + DONE, "is no event"),
        (b'{"choices": []}\n\n' + WHOLE_STREAM + DONE, "is no event"),
        (b'error: {"code": 500, "message": "the engine died"}\n\n' + WHOLE_STREAM + DONE, "the engine died"),
        (WHOLE_STREAM.replace(b"data: ", b"data: data: ", 1) + DONE, "not a completion"),
        (WHOLE_STREAM.replace(b"\n\ndata: ", b",", 1) + DONE, "not a completion"),
        (WHOLE_STREAM.replace(b"\n\ndata: ", b"", 1) + DONE, "not a completion"),
        (WHOLE_STREAM.replace(b'"choices"', b'"choices"\n', 1) + DONE, "not a completion"),
    ],
)
def test_a_stream_with_a_line_that_is_not_understood_is_refused(stream, words):
    for size in (len(stream), 1, 50):
        with pytest.raises(AnswerError, match=words):
            read([stream[i : i + size] for i in range(0, len(stream), size)], compact_every=1)


@pytest.mark.parametrize("form", [0, 1], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ([choice([1, 2], "stop"), choice([3], "stop", index=1)], "more than one choice"),
        ([choice([1, 2, 3], "stop", index=1)], "more than one choice"),
        ([choice([1, 2, -3], "stop")], "not 32-bit integers of 0 or more"),
        ([choice([1, 2, 2**31], "stop")], "not 32-bit integers of 0 or more"),
        ([choice([1, 2, 2**64], "stop")], "not 32-bit integers of 0 or more"),
        ([choice([2**31, 1, 2], "stop")], "not 32-bit integers of 0 or more"),
        ([choice([-1, 1, 2], "stop")], "not 32-bit integers of 0 or more"),
        ([choice([1, 2, 3.0], "stop")], "not 32-bit integers of 0 or more"),
        ([choice([1, 2, True], "stop")], "not 32-bit integers of 0 or more"),
        ([choice([1, 2, "3"], "stop")], "not 32-bit integers of 0 or more"),
        (["a", "b"], "not a completion"),
        ("ab", "not a completion"),
    ],
)
def test_a_choice_that_is_not_the_one_asked_for_is_refused(form, choices, words):
    document = {"choices": choices, "usage": usage(3)}
    stream = event(**document) + DONE
    with pytest.raises(AnswerError, match=words):
        read([stream]) if form else whole_answer(json.dumps(document).encode(), 3, LIMITS)


def test_choices_that_come_one_after_the_other_are_refused():
    stream = (
        event(choices=[choice([1])])
        + event(choices=[choice([2], index=1)])
        + event(choices=[choice([], "stop")], usage=usage(2))
        + DONE
    )
    with pytest.raises(AnswerError, match="more than one choice"):
        read([stream])


@pytest.mark.parametrize(
    "garbage",
    [
        b'{"error":{"message":"\xe9\xe8"}}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"error":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"error":%b,"choices":[]}' % (b"9" * 5000),
        b'{"choices":[{"token_ids":[%b]}]}' % (b"9" * 5000),
        b'{"choices":["a","b"]}',
        b'{"choices":{"token_ids":[1]}}',
        b'{"usage":{"completion_tokens":1e999},"choices":[]}',
        b"[]",
        b"null",
        b'"error"',
        b"\xff\xfe",
    ],
    ids=range(12),
)
def test_what_is_no_completion_is_an_answer_error_and_nothing_else(garbage):
    with pytest.raises(AnswerError):
        whole_answer(garbage, 3, LIMITS)
    for stream in (garbage, b"data: %b\n\n" % garbage + DONE):
        with pytest.raises(AnswerError):
            read([stream])
    among_others = WHOLE_STREAM + b"data: %b\n\n" % garbage + DONE
    if garbage in (b"[]", b"null"):  # which states nothing
        assert read([among_others]) == ([1, 2], [1])
        return
    with pytest.raises(AnswerError):
        read([among_others])
    assert isinstance(error_message(garbage), str)


@pytest.mark.parametrize("begin", [b": a comment\n\n", b"event: message\n", b"id: 7\nretry: 5\n", b"\n\n", b":\r\n"])
def test_comments_and_other_fields_of_events_do_not_matter(begin):
    spaced = b"".join(
        b"data: %b\n\n" % json.dumps(document).replace(":", " : ").encode()
        for document in (
            {"choices": [choice([1])]},
            {"choices": [choice([2, 3], "stop")]},
            {"choices": [], "usage": usage(3)},
        )
    )
    for stream in (begin + spaced + DONE, spaced.replace(b"data:", begin + b"data:") + begin + DONE):
        for size in (len(stream), 1, 50):
            assert read([stream[i : i + size] for i in range(0, len(stream), size)], compact_every=1) == (
                [1, 2, 3],
                [1],
            )


@pytest.mark.parametrize("begin", [b': "token_ids":[9]\n\n', b'id: "token_ids":[9]\n', b': "token_ids":[9]\r'])
def test_a_first_token_is_never_read_out_of_a_comment(begin):
    assert read([begin, WHOLE_STREAM, DONE]) == ([1, 2], [1])


@pytest.mark.parametrize(
    ("key", "changed", "words"),
    [
        (b'"index"', b'"more":{"token_ids":[9]},"index"', "first token could not be read when it came"),
        (b'"token_ids"', b'"token\\u005fids"', ""),
        (b'"token_ids"', b'"token_ids\\u0020"', ""),
    ],
)
def test_a_first_token_that_the_answer_does_not_have_is_refused_and_no_spelling_hides_one(key, changed, words):
    with pytest.raises(AnswerError) as caught:
        read([WHOLE_STREAM.replace(key, changed, 1) + DONE])
    assert words in str(caught.value)


def test_a_stream_cut_anywhere_is_refused():
    stream = recorded()
    for cut in range(len(stream) - len(b"\n\n")):
        with pytest.raises(AnswerError):
            read([stream[:cut]])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"no such model"}}', "no such model"),
        (b'{"error":"no such model"}', "no such model"),
        (b'{"detail":"prompt must be a string."}', "prompt must be a string."),
        (b"Internal Server Error", ""),
        (b"[]", ""),
        (b'{"detail":[{"loc":["body"],"msg":"Field required"}]}', "[{'loc': ['body'], 'msg': 'Field required'}]"),
    ],
)
def test_what_an_error_status_says(body, words):
    assert refusal_words(body) == words
    assert error_message(body) == ("the server answered: no such model" if b"error" in body else "")
