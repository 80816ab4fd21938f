"""Answers that are text: recorded ones of `transformers serve`, cut into pieces at any place, and refused ones."""

import json
from pathlib import Path

import pytest

from cm4vllm.records.server import Dialect, Prompts
from cm4vllm.serving.answers.event_stream import AnswerError
from cm4vllm.serving.answers.stated import AnswerLimits
from cm4vllm.serving.answers.text_answers import TextReader, whole_text

RECORDED = (Path(__file__).parents[2] / "recorded/transformers-serve.txt").read_text()
SERVE = Dialect(prompts=Prompts.TEXT, usage=True, done=False, left_out=["min_tokens", "top_k"])
IDS = Dialect()
UNCOUNTED = Dialect(prompts=Prompts.TEXT, usage=False, done=False)
LIMITS = AnswerLimits(min_tokens=0, max_tokens=8, max_model_len=2048)
WIDE = AnswerLimits(min_tokens=0, max_tokens=24, max_model_len=2048)


def recorded(name):
    """Return the body of a recorded answer."""
    part = RECORDED.split(f"== {name}\n", 1)[1].split("\n==", 1)[0]
    return part.split("\n\n", 1)[1].strip().encode() + b"\n\n"


def event(**document):
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def text(word, **more):
    return event(choices=[{"index": 0, "text": word, **more}])


def end(reason="stop", tokens=3, prompt=5, **more):
    return event(
        choices=[{"index": 0, "text": "", "finish_reason": reason}],
        usage={"completion_tokens": tokens, "prompt_tokens": prompt, **more},
    )


def read(raw, dialect=SERVE, limits=LIMITS, prompt=5):
    reader = TextReader(dialect)
    reader.feed(raw)
    return reader.finish(prompt, limits)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_the_recorded_stream_is_read_however_it_is_cut(size):
    raw, reader, first = recorded("stream"), TextReader(SERVE), []
    for at in range(0, len(raw), size):
        if reader.feed(raw[at : at + size]) is not None:
            first.append(at)
    answer = reader.finish(5, LIMITS)
    assert answer[:2] == (" On Tuesday the from was Tuesday..", "length")
    assert answer.stated[:3] == (5, 8, 0)
    assert len(first) == 1
    # The first text is told with the piece that ends its line, and not before.
    assert first[0] <= raw.index(b"\n") < first[0] + size


def test_a_whole_answer_and_conversation_are_read():
    answer = whole_text(recorded("whole"), 5, WIDE, SERVE)
    assert answer[:2] == (" On Tuesday the from was Tuesday..", "stop")
    assert answer.stated[:3] == (5, 9, 0)
    message = {"role": "assistant", "reasoning_content": "a", "content": "b"}
    conversation = {
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"completion_tokens": 2, "prompt_tokens": 9},
    }
    raw = json.dumps(conversation).encode()
    assert whole_text(raw, 5, LIMITS, Dialect(prompts=Prompts.CHAT)).text == "ab"


def test_what_is_gathered_is_reduced_without_a_difference():
    raw, reader = recorded("stream"), TextReader(SERVE)
    for at in range(0, len(raw), 100):
        reader.feed(raw[at : at + 100])
        reader.compact()
    assert reader.finish(5, LIMITS).text == " On Tuesday the from was Tuesday.."
    assert reader.token_count == 8


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_the_reasoning_channel_is_the_first_text_and_is_counted(name):
    reader = TextReader(Dialect(prompts=Prompts.CHAT, done=False))
    assert reader.feed(event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])) is None
    assert reader.feed(event(choices=[{"index": 0, "delta": {name: " think"}}])) == 0
    assert reader.feed(event(choices=[{"index": 0, "delta": {"content": " answer"}}])) is None
    reader.feed(
        event(
            choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}],
            usage={"completion_tokens": 3, "prompt_tokens": 90},
        )
    )
    answer = reader.finish(5, LIMITS)
    assert (answer.text, answer.first, answer.stated.tokens) == (" think answer", " think", 3)


@pytest.mark.parametrize(
    ("raw", "dialect", "words", "counts"),
    [
        # Two names of one channel are one text.
        (
            event(choices=[{"index": 0, "delta": {"reasoning_content": " x", "reasoning": " x", "content": None}}])
            + end(),
            SERVE,
            " x",
            (5, 3, 0),
        ),
        # Without usage the text is all.
        (text("a") + text("", finish_reason="stop"), UNCOUNTED, "a", (-1, -1, 0)),
        # Tokens without text are an answer.
        (end(tokens=1), SERVE, "", (5, 1, 0)),
    ],
)
def test_what_is_no_usual_answer_is_read(raw, dialect, words, counts):
    answer = read(raw, dialect)
    assert (answer.text, answer.stated[:3]) == (words, counts)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (text("a") + end("abort"), "finish_reason is 'abort'"),
        (text("a") + end() + text("b"), "goes on after its finish_reason"),
        (text(5) + end(), "not a completion in JSON"),
        (text("a") + end(tokens=9), "more tokens than max_tokens"),
        (text("a") + end(tokens=0), "counts no tokens"),
        (text("a") + end("length", tokens=3), "before max_tokens"),
        (text("a") + event(choices=[{"index": 0, "text": "", "finish_reason": "stop"}]), "no usage.completion_tokens"),
        (b"", "no finish_reason"),
    ],
)
def test_what_is_not_whole_is_refused(raw, words):
    with pytest.raises(AnswerError, match=words.replace("[", r"\[")):
        read(raw)


def test_a_server_whose_streams_end_with_done_must_end_them_so():
    with pytest.raises(AnswerError, match=r"without \[DONE\]"):
        read(text("a") + end(), IDS)
    assert read(text("a") + end() + b"data: [DONE]\n\n", IDS).text == "a"
