"""A server that gives text and no token ids, as `transformers serve`, SGLang and gateways do: real HTTP on loopback.

Its answers have the form of those that `transformers serve` 5.23.0 gave (tests/recorded/transformers-serve.txt): no
[DONE], the usage in the event that ends the stream, errors as {"detail": ...}. Each of its habits can be changed.
"""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from loopback_server import Handler, LoopbackServer

MODEL = "harbour"
WORDS = ["none", "</s>", *(f"{kind}{number}" for kind in ("buoy", "crane", "dock", "ebb") for number in range(200))]
LENGTH = 2048


@cache
def tokenizer() -> Tokenizer:
    """Return a tokenizer of words, each with the space before it."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    vocabulary |= {f" {word}": number + len(WORDS) for number, word in enumerate(WORDS)}
    made = Tokenizer(WordLevel(vocabulary, unk_token="none"))
    made.pre_tokenizer = Split(Regex(r" ?[^ ]+"), "isolated")
    made.decoder = Fuse()
    return made


def save_model(folder: Path) -> Path:
    """Write a model's folder: the tokenizer, a configuration, and weights of no meaning."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": 2 * len(WORDS),
                "max_position_embeddings": LENGTH,
            }
        )
    )
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    return folder


def prompt_text(index: int) -> str:
    return " ".join(WORDS[2 + (index * 37 + place * 11) % 700] for place in range(3 + index % 40))


def answer_words(prompt: str, most: int) -> list[str]:
    """Return the words that the server answers a prompt with."""
    number = sum(map(ord, prompt))
    return [f" {WORDS[2 + (number * 31 + 97 * place) % 700]}" for place in range(1 + number % most)]


@dataclass(kw_only=True)
class TextServer(LoopbackServer):
    """Use as a context manager; `endpoint` is its base URL. `bodies` has what it was asked.

    `refuses` are the parameters that it does not know, `takes_ids` and `takes_text` the prompts that it takes. With
    `counts` it has a usage, which has `extra` tokens more than the text of an answer that ends by itself, and with
    `counts_end` the token that ended it; `overcount` comes to each count. `reasoning` words of each answer come first,
    in the channel of that name. The n-th answer names `model`, and is `empty` or not; `reads` says how many tokens of a
    prompt it counts. `usage` is more in each usage, `odd` changes each document. The first `together` words come in one
    event, and the end `last_delay_s` after the last one.
    """

    refuses: tuple[str, ...] = ("min_tokens", "top_k", "return_token_ids", "ignore_eos")
    takes_ids: bool = False
    takes_text: bool = True
    counts: bool = True
    counts_end: bool = True
    extra: Callable[[int], int] = lambda words: 0
    overcount: int = 0
    done: bool = False
    lists_models: bool = False
    version: str = ""
    owner: str = ""
    chat: bool = False
    template_tokens: int = 0
    reasoning: int = 0
    reasoning_name: str = "reasoning_content"
    cached: int = 0
    reason: str = ""
    error_event: bool = False
    fails: Callable[[int], bool] = lambda number: False
    wait_s: float = 0.0
    last_delay_s: float = 0.0
    together: int = 1
    model: Callable[[int], str] = lambda number: MODEL
    reads: Callable[[int, int], int] = lambda number, tokens: tokens
    usage: dict[str, Any] = field(default_factory=dict)
    odd: Callable[[dict[str, Any]], dict[str, Any]] = lambda document: document
    empty: Callable[[int], bool] = lambda number: False
    bodies: list[dict[str, Any]] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> TextServer:
        return self.start(_Handler)

    def refusal(self, path: str, body: dict[str, Any]) -> tuple[int, str] | None:
        """Return status and words where a request is not taken."""
        if path == "/v1/chat/completions":
            if not self.chat:
                return 404, "Not Found"
        elif path != "/v1/completions":
            return 404, "Not Found"
        if body["model"] != MODEL:
            return 400, f"Server is pinned to '{MODEL}'; requested '{body['model']}'."
        unknown = {name for name in body if name in self.refuses}
        if unknown:
            return 422, f"Unexpected fields in the request: {unknown}"
        if "prompt" in body and not (self.takes_text if isinstance(body["prompt"], str) else self.takes_ids):
            return 400, "prompt must be a string."
        return None


class _Handler(Handler):
    server_of: TextServer

    def do_GET(self) -> None:
        asked = self.server_of
        if self.path == "/v1/models" and asked.lists_models:
            self._answer(200, {"object": "list", "data": [{"id": MODEL, "owned_by": asked.owner}]})
        elif self.path == "/v1/models":
            self.send(500, b"Internal Server Error", "text/plain; charset=utf-8")
        elif self.path == "/version" and asked.version:
            self._answer(200, {"version": asked.version})
        else:
            self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        asked = self.server_of
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = len(asked.bodies)
        asked.bodies.append(body)
        if asked.fails(number):
            self._answer(500, {"detail": "made to fail"})
            return
        refusal = asked.refusal(self.path, body)
        if refusal is not None:
            self._answer(refusal[0], {"detail": refusal[1]})
            return
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        text = prompt if isinstance(prompt, str) else tokenizer().decode(prompt)
        read = len(prompt) if not isinstance(prompt, str) else len(re.findall(r"[^ ]+", prompt))
        words = answer_words(text, 2 * body["max_tokens"])
        reason = asked.reason or ("length" if len(words) >= body["max_tokens"] else "stop")
        words = [] if asked.empty(number) else words[: body["max_tokens"]]
        reason = "stop" if asked.empty(number) else reason
        count = (
            len(words)
            if reason == "length"
            else min(body["max_tokens"], len(words) + asked.counts_end + asked.extra(len(words)))
        )
        count += asked.overcount
        usage = {
            "completion_tokens": count,
            "prompt_tokens": asked.reads(number, read) + asked.template_tokens,
            "total_tokens": read + count + asked.template_tokens,
            "prompt_tokens_details": {"cached_tokens": asked.cached},
            **asked.usage,
        }
        self.model = asked.model(number)
        (self._stream if body.get("stream") else self._whole)(words, reason, usage)

    def _parts(self, words: list[str]) -> list[dict[str, Any]]:
        """Return the choices of the words one by one, those of the reasoning channel first."""
        asked = self.server_of
        parts: list[dict[str, Any]] = []
        for place, word in enumerate(words):
            name = asked.reasoning_name if place < asked.reasoning else "content" if asked.chat else "text"
            parts.append({"delta": {name: word}} if asked.chat else {name: word})
        return parts

    def _whole(self, words: list[str], reason: str, usage: dict[str, Any]) -> None:
        asked = self.server_of
        begin, rest = "".join(words[: asked.reasoning]), "".join(words[asked.reasoning :])
        said: dict[str, Any] = {asked.reasoning_name: begin} if begin else {}
        choice = {"message": {**said, "content": rest}} if asked.chat else {**said, "text": rest}
        document = {"id": "1", "model": self.model, "choices": [{"finish_reason": reason, "index": 0, **choice}]}
        self._answer(200, asked.odd({**document, "usage": usage} if asked.counts else document))

    def _stream(self, words: list[str], reason: str, usage: dict[str, Any]) -> None:
        asked = self.server_of
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if asked.chat:
            self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        first = "".join(words[: asked.together])
        for part in self._parts([first, *words[asked.together :]] if first else []):
            if asked.wait_s:
                threading.Event().wait(asked.wait_s)
            self._event({"id": "1", "choices": [{"index": 0, **part}]})
        if asked.error_event:
            self._event({"error": "the model died"})
        else:
            if asked.last_delay_s:
                threading.Event().wait(asked.last_delay_s)
            last = {"delta": {}} if asked.chat else {"text": ""}
            end = {"id": "1", "choices": [{"finish_reason": reason, "index": 0, **last}]}
            self._event({**end, "usage": usage} if asked.counts else end)
        if asked.done:
            self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, document: dict[str, Any]) -> None:
        document = self.server_of.odd({"model": self.model, **document})
        self._chunk(b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        self.send(status, json.dumps(document).encode(), "application/json")
