"""A server in memory for the self-check: `python -m cm4vllm.loadgen.process.loopback TOKENS INTERVAL STEP_S`.

It answers any completion at once with TOKENS tokens made beforehand, in vLLM's format: a whole answer in one piece
where INTERVAL is 0, else a stream as an engine sends it, a chunk of INTERVAL tokens to every stream every STEP_S s. It
listens on a free port of 127.0.0.1, prints the port, and ends when its standard input is closed, or with its parent.
"""

import asyncio
import gc
import re
import signal
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import msgspec
import uvloop

from cm4vllm.common.programs.processes import die_with_parent

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_PROMPT = re.compile(rb'"(?:prompt|token_ids)":\[([\d,]*)\]')
_FORM, _HEAD_BYTES = b"multipart/form-data", 1024
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def main(argv: Sequence[str]) -> int:
    """Serve until standard input is closed; return the process's exit code."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(argv[1]), int(argv[2]), float(argv[3])))
    return 0


async def _serve(tokens: int, interval: int, step_s: float) -> None:
    """Serve answers from memory until standard input is closed."""
    loop, engine = asyncio.get_running_loop(), _Engine(tokens, interval, step_s)
    server = await loop.create_server(lambda: _Talk(engine), "127.0.0.1", 0, backlog=4096)
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), over.set)
    if interval:
        loop.call_later(step_s, engine.step)
    gc.freeze()
    gc.disable()
    print(server.sockets[0].getsockname()[1], flush=True)
    await over.wait()


class _Engine:
    """Makes the answers, and sends the next chunk of each stream at every step."""

    def __init__(self, tokens: int, interval: int, step_s: float) -> None:
        self._tokens, self._interval, self._step_s = tokens, interval, step_s
        self._streams: list[tuple[asyncio.Transport, Sequence[bytes], int]] = []
        self._loop = asyncio.get_running_loop()

    def answer(self, transport: asyncio.Transport, prompt_tokens: int) -> None:
        """Answer a request: whole at once, or as a stream with a chunk at each step."""
        if not self._interval:
            transport.write(_whole_answer(self._tokens, prompt_tokens))
            return
        chunks = _chunks(self._tokens, self._interval, prompt_tokens)
        transport.write(_STREAM_HEAD + chunks[0])
        self._streams.append((transport, chunks, 1))

    def step(self) -> None:
        """Send the next chunk of every open stream, and take the next step after its time."""
        self._loop.call_later(self._step_s, self.step)
        streams, self._streams = self._streams, []
        for transport, chunks, at in streams:
            transport.write(chunks[at])
            if at + 1 < len(chunks):
                self._streams.append((transport, chunks, at + 1))


class _Talk(asyncio.Protocol):
    """One connection."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._data = bytearray()
        self._needed = 0  # bytes of the request, as soon as they are known
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of a connection."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Collect the bytes of a request, and answer it when it is whole."""
        self._data += data
        if not self._needed:
            end = self._data.find(b"\r\n\r\n")
            head = bytes(self._data[:end]) if end >= 0 else b""
            if (length := _LENGTH.search(head)) is None:
                return
            self._needed = end + 4 + int(length[1])
        if len(self._data) < self._needed:
            return
        # A form carries a file, in which no prompt is looked for.
        prompt = None if _FORM in self._data[:_HEAD_BYTES] else _PROMPT.search(bytes(self._data))
        self._data.clear()
        self._needed = 0
        self._engine.answer(self._transport, prompt[1].count(b",") + 1 if prompt else 0)


@lru_cache(maxsize=4096)
def _whole_answer(tokens: int, prompt_tokens: int) -> bytes:
    """Return a whole HTTP answer of `tokens` tokens, as vLLM sends it."""
    content = msgspec.json.encode({**_event(range(tokens), "stop"), "usage": _usage(tokens, prompt_tokens)})
    return b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b" % (
        len(content),
        content,
    )


@lru_cache(maxsize=4096)
def _chunks(tokens: int, interval: int, prompt_tokens: int) -> Sequence[bytes]:
    """Return the parts of a stream, a part for each step: the first token alone, `interval` tokens each, the end."""
    usage = msgspec.json.encode({**_event((), None), "choices": [], "usage": _usage(tokens, prompt_tokens)})
    end = _chunk(b"data: %b\n\n" % usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    if tokens == 1:
        return (*_tokens_of(1, 1), end)
    chunks = _tokens_of(tokens, interval)
    return (*chunks[:-1], chunks[-1] + end)


@lru_cache(maxsize=4)
def _tokens_of(tokens: int, interval: int) -> Sequence[bytes]:
    """Return the chunks of a stream: the first token alone, then `interval` tokens each."""
    groups = [range(1), *(range(begin, min(begin + interval, tokens)) for begin in range(1, tokens, interval))]
    reasons = [None] * (len(groups) - 1) + ["stop"]
    return tuple(
        _chunk(b"data: %b\n\n" % msgspec.json.encode({**_event(group, reason), "usage": None}))
        for group, reason in zip(groups, reasons, strict=True)
    )


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(tokens: Sequence[int], reason: str | None) -> dict[str, object]:
    """Return an event in the form of vLLM's completions."""
    return {
        "id": "cmpl-8f14e45fceea167a5a36dedd4bea2543",
        "object": "text_completion",
        "created": 1700000000,
        "model": "loopback",
        "choices": [
            {
                "index": 0,
                "text": " token" * len(tokens),
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": [100 + token % 900 for token in tokens],
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
        ],
    }


def _usage(tokens: int, prompt_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + tokens, "completion_tokens": tokens}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
