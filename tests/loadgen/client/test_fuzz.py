"""Thousands of answers with faults of every kind: each request ends once, and no answer counts that is not all there.

What may count is decided by a reader of its own, slow and plain: Python's json, line by line.
"""

import asyncio
import contextlib
import json
import random
import re
import socket
from collections import Counter

import pytest
import uvloop
from driven_client import LIMITS, Ledger, all_ended
from fake_vllm import expected_tokens, prompt

from cm4vllm.loadgen.client import client as client_module
from cm4vllm.loadgen.client import in_flight
from cm4vllm.loadgen.client.client import Client

REQUESTS = 1200
DEEP = b"[" * 50_000 + b"]" * 50_000


# --- What may count -------------------------------------------------------------------------------------------------


def readable(raw):
    """Decode JSON more leniently than any client has to; ValueError where even that fails."""
    text = re.sub(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})', b"?", raw).decode(errors="replace")
    return json.loads(text, strict=False, parse_int=lambda digits: int(digits[:400]))


def is_error(error):
    """Return True if an error is one: it is none where it is empty, or has only empty fields."""
    fields = error.values() if isinstance(error, dict) else [error]
    return any(field and str(field).strip().lower() not in ("", "null", "none") for field in fields)


def plain_reading(body, prompt_tokens, *, streamed):
    """Return the tokens of an answer, None where it must not count."""
    tokens, reasons, counts, done, name = [], set(), None, False, b""
    for line in re.split(rb"\r\n|\n|\r", body) if streamed else [b"data:" + body]:
        field, _, value = line.partition(b":")
        if not line or field == b"event":
            name = value.strip().lower()
            if b"error" in name:
                return None
        if field != b"data":
            if line[:1] in (b"{", b"[", b"<"):
                return None
            continue
        if value.strip() == b"[DONE]":
            done, name = True, b""
            continue
        if streamed and (not value.strip() or name not in (b"", b"message")):
            continue
        if done:
            return None
        try:
            document = readable(value) or {}
            if is_error(document.get("error")):
                return None
            usage = document.get("usage")
            if isinstance(usage, dict) and usage.get("completion_tokens") is not None:
                counts = usage["completion_tokens"], usage.get("prompt_tokens")
            for choice in document.get("choices") or ():
                if choice.get("index") not in (0, None, "0") or len(document["choices"]) != 1:
                    return None
                tokens += choice.get("token_ids") or []
                reasons.add(str(choice.get("finish_reason") or "").lower() or None)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
    usable = all(type(token) is int and 0 <= token < 2**31 for token in tokens)
    [reason] = reasons - {None} if len(reasons - {None}) == 1 else [None]
    whole = reason == "stop" or (reason == "length" and len(tokens) == LIMITS.max_tokens)
    counted = counts == (len(tokens), prompt_tokens)
    long_enough = LIMITS.min_tokens <= len(tokens) <= LIMITS.max_tokens
    return tokens if usable and whole and counted and long_enough and (done or not streamed) else None


# --- Faults ---------------------------------------------------------------------------------------------------------


class Faults:
    """Draws answers: right ones, and such with faults in the documents, the bytes, or the framing."""

    def __init__(self, seed, *, streamed):
        self.draw = random.Random(seed)
        self.streamed = streamed
        self._seed = seed

    def of(self, number, ids):
        """Return the faults of the n-th answer to the prompt `ids`: the same in each run of a test."""
        return Faults(f"{self._seed} {number} {ids}", streamed=self.streamed)

    def body(self, ids):
        """Return the body of an answer to the prompt `ids`."""
        draw = self.draw
        tokens = expected_tokens(ids, 128, 2)
        tokens = tokens[: draw.randint(2, 40)] if draw.random() < 0.9 else tokens
        reason = "stop" if len(tokens) < 128 else "length"
        usage = {"prompt_tokens": len(ids), "total_tokens": len(ids) + len(tokens), "completion_tokens": len(tokens)}
        groups = self.cut(tokens, draw.randint(0, 6)) if self.streamed else [tokens]
        documents = [
            {
                "id": "cmpl-1",
                "choices": [
                    {
                        "index": 0,
                        "text": draw.choice(("w", '"token_ids":[1]', "\n\ndata: ")),
                        "token_ids": group,
                        "finish_reason": None,
                    }
                ],
            }
            for group in groups
        ]
        documents[-1]["choices"][0]["finish_reason"] = reason
        if self.streamed:
            documents.append({"choices": []})
        documents[-1]["usage"] = usage
        while draw.random() < 0.5:
            self.spoil(documents)
        lines = [self.written(document) for document in documents]
        body = self.stream(lines) if self.streamed else lines[0]
        while draw.random() < 0.25:
            body = self.spoiled(body)
        return body

    def cut(self, whole, times):
        """Cut at random places; no part is empty."""
        cuts = sorted(self.draw.sample(range(1, len(whole)), min(len(whole) - 1, times))) if whole else []
        return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True) if b > a]

    def spoil(self, documents):
        """Change one document, or their order, in place."""
        draw = self.draw
        at = draw.randrange(len(documents))
        document = documents[at]
        choice = next(iter(document.get("choices") or []), {})
        choice = choice if isinstance(choice, dict) else {}
        ids = choice.get("token_ids")
        change = draw.randrange(16)
        if change == 0:
            document["error"] = draw.choice((None, "x", {"message": "x"}, {"message": None}, [], {}, 0, False))
        elif change == 1:
            choice["finish_reason"] = draw.choice(("stop", "length", "abort", "error", "", None, 7, "\ud800"))
        elif change == 2:
            counts = ({"completion_tokens": 3}, {"completion_tokens": 2.0, "prompt_tokens": 3})
            document["usage"] = draw.choice((None, {}, [], {"completion_tokens": -1}, *counts))
        elif change == 3 and isinstance(ids, list):
            wrong = draw.choice((-1, 2**31, 2**63, 2**64, 1.5, 1.0, True, None, "7", [1], 8))
            ids.insert(draw.randint(0, len(ids)), wrong)
        elif change == 4 and isinstance(ids, list) and ids:
            ids.pop(draw.randrange(len(ids)))
        elif change == 5:
            document["choices"] = draw.choice(
                ([], {}, None, ["a", "b"], "ab", [choice, choice], [choice, {"index": 1}])
            )
        elif change == 6:
            choice["index"] = draw.choice((1, -1, 0, "0", None))
        elif change == 7:
            choice["token_ids"] = draw.choice((None, [], {}, "12", 5))
        elif change == 8 and self.streamed and len(documents) > 1:
            documents.pop(at)
        elif change == 9 and self.streamed:
            documents.insert(draw.randint(0, len(documents)), document)
        elif change == 10 and self.streamed:
            draw.shuffle(documents)
        elif change == 11:
            document["more"] = {"token_ids": [9], "index": 1, "error": {"message": "x"}, "finish_reason": "abort"}
        elif change == 12:
            document[draw.choice(("usage", "choices", "id"))] = draw.choice((0, "", "[DONE]"))
        elif change == 13:
            document.pop(draw.choice(tuple(document)) if document else "", None)

    def written(self, document):
        """Write a document as one of many servers would."""
        draw = self.draw
        separators = draw.choice(((",", ":"), (", ", ": "), (" ,\t", " : ")))
        line = json.dumps(document, separators=separators, ensure_ascii=draw.random() < 0.5).encode(errors="replace")
        if draw.random() < 0.05:
            line = line.replace(b"token_ids", b"token\\u005fids", 1)
        if draw.random() < 0.05:
            more = draw.choice((DEEP, b"[[[]]]", b"9" * 5000, b'"\xe9\xff"', b"1e999", b"NaN", b'"\\q"'))
            line = b'{"deep":%b,%b' % (more, line[1:])
        return line

    def stream(self, lines):
        draw = self.draw
        end = draw.choice((b"\n\n",) * 6 + (b"\r\n\r\n", b"\r\r", b"\n", b"\r\n"))
        between = (
            b": ping" + end,
            b"event: message\n",
            b"id: 1\n",
            b"\n",
            b"event: error\n",
            b"xyz" + end,
            b"event: ping\n",
            b"data: [DONE]\n\n",
            b"data:\n\n",
            b': "token_ids":[5]' + end,
        )
        parts = []
        for line in lines:
            if draw.random() < 0.05:
                parts.append(draw.choice(between))
            parts.append(draw.choice((b"data: ",) * 8 + (b"data:", b"data:   ")) + line + end)
        if draw.random() < 0.95:
            parts.append(draw.choice((b"data: [DONE]",) * 8 + (b"data:[DONE]", b"data: [DONE] ")) + end)
        return b"".join(parts)

    def spoiled(self, raw):
        """Change some bytes."""
        draw = self.draw
        if not raw:
            return raw
        a, b = sorted((draw.randrange(len(raw)), draw.randrange(len(raw))))
        b = min(b, a + draw.choice((1, 1, 5, 300)))
        return draw.choice(
            (
                raw[:a] + raw[b:],
                raw[:b] + raw[a:],
                raw[:a],
                raw[:a] + bytes((raw[a] ^ 1 << draw.randrange(8),)) + raw[a + 1 :],
                raw[:a] + draw.randbytes(b - a) + raw[a:],
                raw[:a]
                + draw.choice((b"\n", b"\r", b"\n\n", b"data: ", b"\0", b"}", b",", b"[", b"0", b" "))
                + raw[a:],
            )
        )

    def framed(self, body):
        """Return a whole HTTP answer, and whether its framing has no fault."""
        draw = self.draw
        status = b"200 OK" if draw.random() < 0.9 else draw.choice((b"500 x", b"400 x", b"429 x", b"204 x", b"100 x"))
        head = b"HTTP/1.1 %b\r\n" % status
        if draw.random() < 0.1:
            head = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + head
        if draw.random() < 0.1:
            head += b"connection: close\r\n"
        framed, pieces = draw.random() < 0.9, [body]
        if draw.random() < 0.5:
            head += b"content-length: %d\r\n\r\n" % len(body)
        else:
            head += b"transfer-encoding: chunked\r\n\r\n"
            pieces = self.cut(body, draw.randint(0, 8))
            pieces = [part for piece in pieces for part in (b"%x\r\n" % len(piece), piece, b"\r\n")] + [b"0\r\n\r\n"]
        if not framed and len(pieces) > 1 and draw.random() < 0.7:
            at = draw.choice([at for at in range(len(pieces)) if at % 3 != 1])
            pieces[at] = self.spoiled(pieces[at])
        elif not framed:
            head = self.spoiled(head)
        raw = head + b"".join(pieces)
        if draw.random() < 0.05:
            more = (b"x", b"\r\n", b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
            raw += draw.choice(more)
        return raw, framed


# --- The other side -------------------------------------------------------------------------------------------------


class Peer:
    """Answers each request of the client's connections, over socket pairs, as `faults` draws it."""

    connect_s = 0.0

    def __init__(self, faults):
        self.faults = faults
        self.sent = {}  # what may count as the last answer to each prompt
        self.bodies = {}
        self.times = Counter()
        self.tasks = set()

    def head(self, path, content_type):
        return b"POST / HTTP/1.1\r\ncontent-length: "

    async def connect(self, connection):
        if self.faults.draw.random() < 0.02:
            raise ConnectionRefusedError
        loop = asyncio.get_running_loop()
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        theirs.setblocking(False)
        await loop.create_connection(lambda: connection, sock=mine)
        task = loop.create_task(self.talk(theirs))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def talk(self, sock):
        with sock, contextlib.suppress(OSError):
            while request := await asyncio.get_running_loop().sock_recv(sock, 1 << 20):
                if not await self.answer(sock, json.loads(request.partition(b"\r\n\r\n")[2])["prompt"]):
                    return

    async def answer(self, sock, ids):
        """Answer a request; tell whether the connection is to stay open."""
        loop = asyncio.get_running_loop()
        self.times[tuple(ids)] += 1
        faults = self.faults.of(self.times[tuple(ids)], ids)
        body = self.bodies[tuple(ids)] = faults.body(ids)
        raw, framed = faults.framed(body)
        may_count = plain_reading(body, len(ids), streamed=faults.streamed)
        if may_count is None and not framed:
            may_count = "anything"  # what faults in the framing make of faults in the body
        self.sent[tuple(ids)] = may_count
        for piece in faults.cut(raw, faults.draw.choice((0, 0, 1, 4, 20))):
            await loop.sock_sendall(sock, piece)
            await asyncio.sleep(faults.draw.choice((0, 0, 0.0005)))
        # Where the framing has faults, the client may wait for more.
        return framed and faults.draw.random() < 0.95


@pytest.mark.parametrize("stream_interval", [0, 1, 16], ids=["whole", "tokens", "chunks"])
def test_each_request_ends_once_and_what_counts_was_all_there(monkeypatch, stream_interval):
    monkeypatch.setattr(client_module, "RETRY_PAUSE_S", (0.0, 0.0))
    monkeypatch.setattr(client_module, "COMPACT_INTERVAL_S", 0.0005)
    monkeypatch.setattr(in_flight, "PIECES_TO_COMPACT", 2)
    peer, ledger, errors = Peer(Faults(1, streamed=stream_interval > 0)), Ledger(), []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        client = Client([peer], ledger, limits=LIMITS, stream_interval=stream_interval, max_in_flight=8, stall_s=2)
        return await all_ended(client, ledger, REQUESTS, stream_interval=stream_interval, timeout_s=60)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == (0, 0)
    assert errors == []
    sent = {key: peer.sent[tuple(prompt(key))] for key in ledger.tokens}
    wrong = {
        key: (tokens, peer.bodies[tuple(prompt(key))])
        for key, tokens in ledger.tokens.items()
        if sent[key] not in (tokens, "anything")
    }
    assert wrong == {}
    assert {key: ledger.firsts[key] for key in ledger.tokens if key in ledger.firsts} == {
        key: tokens[0] for key, tokens in ledger.tokens.items() if stream_interval
    }
    # Both ways: an answer with nothing against it does count, and faults of all kinds were met.
    missed = [key for key in ledger.causes if "disagree" not in ledger.causes[key]]
    assert REQUESTS * 0.2 < len(ledger.tokens) < REQUESTS * 0.9
    assert len(Counter(ledger.causes[key] for key in missed)) > 10
