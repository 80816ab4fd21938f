"""A fast server with vLLM's API: `python server.py FOLDER --port PORT`.

The text of the file `fault` in FOLDER is its present fault: `hang` leaves requests unanswered, `slow` answers ten times
slower, `rubbish` answers what no server of this API does. Each answer depends on its prompt alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

MODEL, LENGTH = "small", 2048
#: The name of the file whose text is the present fault.
FAULT_FILE = "fault"
#: Seconds that an answer takes.
ANSWER_S = 0.1
_METRICS = 'vllm:cache_config_info{enable_prefix_caching="False"} 1.0\n'


def answer_to(prompt: list[int], most: int, least: int) -> list[int]:
    """Return the tokens of the answer to a prompt."""
    count = least + sum(prompt) * 7919 % max(1, min(most, 24) - least + 1)
    return [(sum(prompt) * 31 + 97 * place) % 700 for place in range(max(1, count))]


class _Server:
    def __init__(self, control: Path) -> None:
        self._control = control

    def _fault(self) -> str:
        try:
            return self._control.read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path, fields = head.split(" ", 2)[1], head.lower()
                size = int(fields.split("content-length:")[1].split()[0]) if "content-length:" in fields else 0
                body = json.loads(await reader.readexactly(size)) if size else {}
                await self._answer(path, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        simple = {
            "/health": "",
            "/version": {"version": "0.32.0"},
            "/metrics": _METRICS,
            "/v1/models": {"data": [{"id": MODEL, "max_model_len": LENGTH}]},
        }
        fault = self._fault()
        if fault == "hang":
            await asyncio.sleep(3600)
        if path in simple:
            _send(writer, simple[path])
        elif path != "/v1/completions":
            _send(writer, {"detail": "Not Found"}, status="404 Not Found")
        elif fault == "rubbish":
            _send(
                writer,
                {
                    "choices": [{"text": "?", "token_ids": [1, 2], "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 7},
                },
            )
        else:
            await asyncio.sleep(ANSWER_S * (10 if fault == "slow" else 1))
            _complete(writer, body)


def _complete(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    prompt, most = body["prompt"], body["max_tokens"]
    tokens = answer_to(prompt, most, body.get("min_tokens", 0)) if not body.get("ignore_eos") else list(range(most))
    reason = "length" if len(tokens) == most else "stop"
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
    if not body.get("stream"):
        choice = {"index": 0, "text": "w" * len(tokens), "token_ids": tokens, "finish_reason": reason}
        _send(writer, {"choices": [{**choice, "prompt_token_ids": prompt}], "usage": usage})
        return
    events: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "text": "w", "token_ids": [token]}], "usage": None} for token in tokens
    ]
    events[-1]["choices"][0]["finish_reason"] = reason
    events[0]["choices"][0]["prompt_token_ids"] = prompt
    lines = [json.dumps(event) for event in [*events, {"choices": [], "usage": usage}]]
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for line in [*lines, "[DONE]"]:
        data = f"data: {line}\n\n".encode()
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    writer.write(b"0\r\n\r\n")


def _send(writer: asyncio.StreamWriter, value: object, *, status: str = "200 OK") -> None:
    data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    kind = "text/plain" if isinstance(value, str) else "application/json"
    writer.write(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)


async def _serve(port: int, control: Path) -> None:
    server = await asyncio.start_server(_Server(control).talk, "127.0.0.1", port, limit=2**20, backlog=2048)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[sys.argv.index("--port") + 1]), Path(sys.argv[1]) / FAULT_FILE))
