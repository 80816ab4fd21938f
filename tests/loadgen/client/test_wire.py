"""Requests for completions, as a server gets them."""

import json

import pytest

from cm4vllm.loadgen.client.wire import Sampling, completion_body, text_completion_body
from cm4vllm.records.server import Api, Dialect, Prompts

PROMPT = [5, 6, 7]
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


def test_a_whole_answer_is_asked_for_without_a_stream():
    body = json.loads(completion_body(Sampling("tiny", 128, 2, 0), PROMPT))
    assert "stream" not in body
    assert json.loads(completion_body(Sampling("tiny", 128, 2, 16), PROMPT))["stream_interval"] == 16


def test_tokens_are_drawn_as_the_benchmark_has_it():
    sampling = Sampling("tiny", 128, 2, 0, temperature=1, top_k=-1, seed=None)
    body = json.loads(completion_body(sampling, PROMPT))
    assert (body["temperature"], body["top_p"], body["top_k"]) == (1, 1, -1)
    assert "seed" not in body and "stop" not in body


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
