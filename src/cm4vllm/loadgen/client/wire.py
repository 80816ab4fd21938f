"""Requests for completions: parameters, bodies, connections, and how many bytes an answer may have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cm4vllm.records.server import Api, Dialect
from cm4vllm.serving.answers.stated import AnswerLimits
from cm4vllm.serving.probing.text_servers import text_body

#: Bytes of an answer at most, beside those of its prompt and tokens, and for each of these: vLLM sends about 250 for a
#: token that comes alone. A server that never ends an answer must not fill the memory.
_MOST_BYTES, _BYTES_OF_A_TOKEN = 1 << 20, 1 << 12
#: Connections to each server that are kept open for requests to come, where each has to leave at once: as many as may
#: be issued while another one is opened (a few ms with TLS, at thousands of queries/s). While they are renewed, up to
#: twice as many.
SPARE = 16


@dataclass(frozen=True)
class Sampling:
    """Sampling and sending of tokens: `stream_interval` 0 asks for a whole answer, k for a chunk every k tokens.

    Greedy without more, as in the reference (mlcommons/inference language/llama3.1-8b/SUT_VLLM.py). `top_k` -1 takes
    all tokens; without a `seed` the server draws as it likes. `stop` are texts that end an answer, which keeps them.
    """

    model: str
    max_tokens: int
    min_tokens: int
    stream_interval: int
    api: Api = Api.COMPLETIONS
    temperature: float = 0
    top_p: float = 1
    top_k: int = 1
    seed: int | None = 42
    stop: tuple[str, ...] = ()


def sampling_parameters(sampling: Sampling) -> dict[str, Any]:
    """Return the parameters of a request that say how tokens are drawn, and how many."""
    asked: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
    if sampling.seed is not None:
        asked["seed"] = sampling.seed
    if sampling.stop:
        asked |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return asked


def completion_body(sampling: Sampling, prompt: Sequence[int]) -> bytes:
    """Return the JSON body that asks for one completion of the token ids `prompt`."""
    asked = sampling_parameters(sampling)
    if sampling.stream_interval > 1:
        asked["stream_interval"] = sampling.stream_interval
    body: dict[str, Any] = {"model": sampling.model}
    if sampling.api is Api.COMPLETIONS:
        body |= {"prompt": list(prompt), **asked, "return_token_ids": True}
    else:
        # A text that ends an answer is found in text.
        body |= {"token_ids": list(prompt), "sampling_params": {**asked, "detokenize": bool(sampling.stop)}}
    if sampling.stream_interval:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(body)


def most_bytes(limits: AnswerLimits, prompt_tokens: int) -> int:
    """Return how many bytes an answer may have at most; a prompt of `prompt_tokens` may be repeated in it."""
    return _MOST_BYTES + _BYTES_OF_A_TOKEN * (limits.max_tokens + prompt_tokens)


def text_completion_body(sampling: Sampling, dialect: Dialect, prompt: str | Sequence[int]) -> bytes:
    """Return the JSON body that asks for one answer to `prompt`, in the dialect of a server that gives text."""
    asked, streamed = sampling_parameters(sampling), sampling.stream_interval > 0
    return msgspec.json.encode(text_body(dialect, sampling.model, prompt, asked, streamed=streamed))
