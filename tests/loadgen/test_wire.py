"""Exact tokens out of an answer's bytes, however they arrive."""

import json
import random

import pytest
from fake_vllm import Behaviour, Fault, stream_events

from cm4vllm.loadgen.wire import AnswerError, Sampling, StreamReader, completion_body, error_message, whole_answer

PROMPT = [5, 6, 7]
BODY = {"model": "tiny", "prompt": PROMPT}
TOKENS = [11, 0, 767, 3, 3, 128009, 42]


def recorded(tokens=TOKENS, *, tokens_per_chunk=1, text="w", fault=Fault.NONE):
    return b"".join(stream_events(BODY, tokens, Behaviour(tokens_per_chunk=tokens_per_chunk, text=text), fault))


def read(pieces, *, prompt_tokens=3, compact_every=0):
    """Return the tokens and the first tokens that were told while the pieces came."""
    reader, firsts = StreamReader(), []
    for count, piece in enumerate(pieces):
        first = reader.feed(piece)
        if first is not None:
            firsts.append(first)
        if firsts and compact_every and count % compact_every == 0:
            reader.compact()
    return reader.finish(prompt_tokens).tolist(), firsts


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


def test_one_byte_at_a_time_gives_the_same_tokens():
    stream = recorded()
    assert read([stream[i:i + 1] for i in range(len(stream))]) == (TOKENS, [11])


@pytest.mark.parametrize("compact_every", [1, 3, 50])
def test_reducing_a_long_stream_on_the_way_changes_nothing(compact_every):
    stream = recorded(list(range(400)), tokens_per_chunk=3)
    for size in (7, 100, 1013):
        pieces = [stream[i:i + size] for i in range(0, len(stream), size)]
        tokens, firsts = read(pieces, compact_every=compact_every)
        assert tokens == list(range(400))
        assert firsts == [0]


def test_the_first_token_is_told_before_the_rest_has_come():
    stream = recorded()
    end_of_first = stream.index(b"\n\n") + 2
    reader = StreamReader()
    assert reader.feed(stream[:end_of_first]) == 11


def test_a_number_that_is_still_coming_is_no_first_token():
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
    answer = {"choices": [{"token_ids": TOKENS, "prompt_token_ids": PROMPT}],
              "usage": {"prompt_tokens": 3, "completion_tokens": len(TOKENS)}}
    assert whole_answer(json.dumps(answer).encode(), 3).tolist() == TOKENS


@pytest.mark.parametrize(("fault", "words"), [
    (Fault.WRONG_USAGE, "disagree"),
    (Fault.WRONG_PROMPT, "other prompt tokens"),
    (Fault.NO_IDS, "lists no token_ids"),
    (Fault.NO_DONE, r"without \[DONE\]"),
    (Fault.ERROR_EVENT, "the engine died"),
])
def test_an_answer_that_does_not_add_up_is_refused(fault, words):
    with pytest.raises(AnswerError, match=words):
        read([recorded(fault=fault)])


def test_a_stream_cut_anywhere_is_refused():
    stream = recorded()
    for cut in range(len(stream) - len(b"\n\n")):
        with pytest.raises(AnswerError):
            read([stream[:cut]])


def test_tokens_beyond_32_bits_are_refused():
    with pytest.raises(AnswerError, match="32-bit"):
        read([recorded([1, 2**31])])


def test_the_request_is_greedy_and_asks_for_exact_tokens():
    body = json.loads(completion_body(Sampling("tiny", 128, 2, 1), PROMPT))
    assert body == {
        "model": "tiny", "prompt": PROMPT, "max_tokens": 128, "min_tokens": 2, "temperature": 0, "top_p": 1, "top_k": 1,
        "seed": 42, "return_token_ids": True, "stream": True, "stream_options": {"include_usage": True},
    }


def test_a_whole_answer_is_asked_for_without_a_stream():
    body = json.loads(completion_body(Sampling("tiny", 128, 2, 0), PROMPT))
    assert "stream" not in body
    assert json.loads(completion_body(Sampling("tiny", 128, 2, 16), PROMPT))["stream_interval"] == 16


def test_the_message_of_an_error_document_is_found():
    assert error_message(b'{"error":{"message":"no such model","code":404}}') == "the server answered: no such model"
    assert error_message(b'{"detail":"Not Found"}') == ""
