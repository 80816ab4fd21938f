"""LoadGen's side of the worker processes: it starts them, hands out the queries, and reads the answers."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Protocol, cast

import msgspec

from cm4vllm.common.errors import CmError, RunFailed, ServerUnreachable
from cm4vllm.common.programs.processes import exit_in_words
from cm4vllm.loadgen.client.text_tokens import TextSettings
from cm4vllm.loadgen.client.worker_messages import COUNT, HEADER, REQUEST, Kind, Stats, WorkerSettings
from cm4vllm.records.run import RunSettings
from cm4vllm.rules import Mode
from cm4vllm.serving.answers.stated import AnswerLimits

#: Seconds that a worker may take to start and to reach its servers.
START_S = 60.0
#: Seconds that a worker may take to close its connections and to send its statistics.
END_S = 20.0

#: Bytes that are read from a worker at a time, at least.
ROOM_BYTES = 1 << 18

_FRAME = HEADER.size
_INT_BYTES = 4
#: Whole answers whose tokens follow.
_LISTED = (Kind.DONE, Kind.DONE_AT_LENGTH)
#: Whole answers of which what is logged follows.
_ENCODED = (Kind.ENCODED, Kind.ENCODED_AT_LENGTH)
_WITH_TEXT = (Kind.READY, Kind.UNREACHABLE, Kind.FAILED, Kind.FAILED_LATE, Kind.STATS)


#: A query's key, the address of its tokens, and their number: int32 that stay there until the receiver returns. The
#: address is 0 where the tokens themselves are not known.
Answer = tuple[int, int, int]
#: The same of a whole answer, whether it ended at its greatest length, and the bytes at the address.
WholeAnswer = tuple[int, int, int, bool, int]


class Receiver(Protocol):
    """Receiver of the answers; called in the reading thread."""

    def first_tokens(self, answers: Sequence[Answer]) -> None:
        """These queries' first tokens came, each of count 1, or 0 where it is not known."""

    def completed(self, answers: Sequence[WholeAnswer]) -> None:
        """These queries' answers are whole."""

    def failed(self, key: int, cause: str, *, first_token_seen: bool) -> None:
        """The query cannot be answered."""


def worker_settings(settings: RunSettings, workers: int) -> list[WorkerSettings]:
    """Return the settings of each of `workers` workers for a run. Raises ModelError."""
    server = settings.server
    limits = AnswerLimits(
        # A server need not keep a parameter that it does not take.
        min_tokens=0 if server.dialect and "min_tokens" in server.dialect.left_out else settings.min_tokens,
        max_tokens=settings.max_tokens,
        max_model_len=server.max_model_len,
        empty=settings.logs_answers,
    )
    text = None
    if server.dialect is not None:
        text = TextSettings(
            dialect=server.dialect,
            tokenizer=str(settings.model.tokenizer_file),
            every=settings.logs_answers,
            logged=settings.terms.logged,
            labels=settings.terms.labels,
        )
    share = -(-settings.max_in_flight // workers) if settings.terms.at_once else None
    endpoints = server.endpoints
    return [
        # Each begins with another server, so that single queries do not all go to the first one.
        WorkerSettings(
            name=f"worker {number + 1}",
            endpoints=[*endpoints[number % len(endpoints) :], *endpoints[: number % len(endpoints)]],
            ca_file=server.ca_file,
            access=server.access,
            api=server.api,
            stream_interval=settings.stream_interval,
            limits=limits,
            max_in_flight=share,
            workers=workers,
            patient=settings.mode is Mode.ACCURACY,
            text=text,
        )
        for number in range(workers)
    ]


class Workers:
    """Worker processes and the thread that reads from them.

    `memory` is the file descriptor of the bodies. `broken` is called in the reading thread when a worker ends by
    itself.
    """

    def __init__(
        self, settings: Sequence[WorkerSettings], memory: int, receiver: Receiver, broken: Callable[[CmError], None]
    ) -> None:
        """Start a process for each worker.

        `memory` is the descriptor of the bodies, `broken` is called if a worker ends early.
        """
        self.stats: list[Stats] = []
        self.failures: Counter[str] = Counter()
        self._receiver = receiver
        self._broken = broken
        self._workers = [_Worker(worker, memory) for worker in settings]
        self._ready = 0
        self._closing = False
        self._thread = threading.Thread(target=self._read, name="answers", daemon=True)
        self._started = threading.Event()
        self._error: CmError | None = None
        self._thread.start()
        if not self._started.wait(START_S):
            self._error = RunFailed("the client's workers did not start", cause=f"no message within {START_S} s")
        if self._error is not None:
            self.kill()
            raise self._error

    @property
    def pids(self) -> list[int]:
        """The process number of each worker."""
        return [worker.process.pid for worker in self._workers]

    def issue(self, queries: Iterable[tuple[int, int, int, int]]) -> None:
        """Send queries (key, offset, length, tokens of the prompt), each to the worker with the fewest open."""
        now = time.monotonic_ns()
        workers = self._workers
        if len(workers) == 1:
            workers[0].send([REQUEST.pack(*query, now) for query in queries])
            return
        shares: list[list[bytes]] = [[] for _ in workers]
        open_ = [worker.issued - worker.ended for worker in workers]
        for query in queries:
            least = open_.index(min(open_))
            open_[least] += 1
            shares[least].append(REQUEST.pack(*query, now))
        for worker, share in zip(workers, shares, strict=True):
            if share:
                worker.send(share)

    def close(self) -> None:
        """Have all workers end, wait for their last messages, and kill those that send none."""
        self._closing = True
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.socket.shutdown(socket.SHUT_WR)
        self._thread.join(END_S)
        self.kill()

    def kill(self) -> None:
        """End all workers at once."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()
        self._thread.join(END_S)  # their ends of the socket pairs are closed now
        for worker in self._workers:
            worker.socket.close()

    def _read(self) -> None:
        """Read until every worker has closed its end. An error here ends the run, which would wait for ever."""
        try:
            self._read_all()
        except CmError as error:
            self._fail(error)
        except Exception as error:
            traceback.print_exc()
            self._fail(
                RunFailed(
                    "the client cannot read the messages of its workers",
                    cause=repr(error),
                    remedy="the run's console.log has the traceback",
                )
            )

    def _read_all(self) -> None:
        """Read the answers of all workers until each has closed its connection."""
        by_descriptor = {worker.socket.fileno(): worker for worker in self._workers}
        with select.epoll() as poll:
            for descriptor in by_descriptor:
                poll.register(descriptor, select.EPOLLIN)
            while by_descriptor:
                for descriptor, _ in poll.poll():
                    worker = by_descriptor[descriptor]
                    if not self._take(worker):
                        poll.unregister(descriptor)
                        del by_descriptor[descriptor]
                        self._ended(worker)

    def _take(self, worker: _Worker) -> bool:
        """Take up what one worker has sent; return False when it has closed its end."""
        try:
            came = worker.receive()
        except OSError:
            return False
        if not came:
            return False
        firsts: list[Answer] = []
        answers: list[WholeAnswer] = []
        failures: list[tuple[int, bytes, bool]] = []
        for key, kind, number, address, text in worker.frames():
            if kind == Kind.FIRST:
                firsts.append((key, address - _INT_BYTES, 1))  # the token is the header's last word
            elif kind in _LISTED:
                answers.append((key, address, number, kind == Kind.DONE_AT_LENGTH, number * _INT_BYTES))
            elif kind == Kind.FIRST_TEXT:
                firsts.append((key, 0, 0))
            elif kind in (Kind.COUNTED, Kind.COUNTED_AT_LENGTH):
                answers.append((key, 0, number, kind == Kind.COUNTED_AT_LENGTH, 0))
            elif kind in _ENCODED:
                (count,) = COUNT.unpack(text)
                cut = kind == Kind.ENCODED_AT_LENGTH
                answers.append((key, address + COUNT.size, count, cut, number - COUNT.size))
            elif kind in (Kind.FAILED, Kind.FAILED_LATE):
                failures.append((key, text, kind == Kind.FAILED_LATE))
            else:
                self._other(worker, kind, text)
        # A query's first token is reported before its end: LoadGen 6.0.17 crashes otherwise.
        if firsts:
            self._receiver.first_tokens(firsts)
        if answers:
            self._receiver.completed(answers)
        for key, text, late in failures:
            cause = text.decode(errors="replace")
            self.failures[cause] += 1
            self._receiver.failed(key, cause, first_token_seen=late)
        worker.ended += len(answers) + len(failures)
        return True

    def _other(self, worker: _Worker, kind: int, text: bytes) -> None:
        """Take a message of a worker that is no answer: ready, unreachable server, counts, failure."""
        if kind == Kind.READY:
            self._ready += 1
            if self._ready == len(self._workers):
                self._started.set()
        elif kind == Kind.UNREACHABLE:
            endpoint, reason = msgspec.json.decode(text)
            self._error = ServerUnreachable(
                f"nothing answers at {endpoint}", cause=reason, remedy="start the server, or correct --api_server"
            )
            self._started.set()
        elif kind == Kind.STATS:
            self.stats.append(msgspec.json.decode(text, type=Stats))
            worker.sent_stats = True

    def _ended(self, worker: _Worker) -> None:
        """Report a worker that ended before its counts came, with its exit status."""
        if worker.sent_stats or self._closing or self._error is not None:
            return
        self._fail(
            RunFailed(
                f"{worker.name} of the client ended unexpectedly: {exit_in_words(worker.process.wait())}",
                cause=f"{worker.issued - worker.ended} of its queries were open",
                remedy="its last output is in the run's console.log",
            )
        )

    def _fail(self, error: CmError) -> None:
        """Report an error: to the run where it has begun, else to the start that waits."""
        if self._started.is_set():
            self._broken(error)
        else:
            self._error = error
            self._started.set()


class _Worker:
    """One worker process, and what has come from it."""

    def __init__(self, settings: WorkerSettings, memory: int) -> None:
        """Start the worker's process, connected by a pair of sockets."""
        self.name = settings.name
        self.issued = 0
        self.ended = 0
        self.sent_stats = False
        self.socket, theirs = socket.socketpair()
        with theirs:
            for end in (self.socket, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cm4vllm.loadgen.client.worker", str(theirs.fileno()), str(memory)],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=(theirs.fileno(), memory),
                env=dict(os.environ),
            )
        stdin = cast(IO[bytes], self.process.stdin)
        stdin.write(msgspec.json.encode(settings))
        stdin.close()
        self._make_room(ROOM_BYTES)
        self._begin = self._end = 0

    def send(self, records: list[bytes]) -> None:
        """Send records of queries to the worker."""
        self.issued += len(records)
        # A worker that has ended is reported by the reading thread.
        with contextlib.suppress(OSError):
            self.socket.sendall(b"".join(records))

    def receive(self) -> int:
        """Read what has come, behind what is left of a record; return the number of bytes. Raises OSError."""
        left = bytes(self._buffer[self._begin : self._end])
        if len(left) == len(self._buffer):
            self._make_room(2 * len(left))
        self._buffer[: len(left)] = left
        came = self.socket.recv_into(self._buffer[len(left) :])
        self._begin, self._end = 0, len(left) + came
        return came

    def frames(self) -> Iterator[tuple[int, int, int, int, bytes]]:
        """Yield each whole record: key, kind, number, the address of its content, and the content itself if it is text.

        The addresses hold until the next `receive`.
        """
        buffer, at = self._buffer, self._begin
        while at + _FRAME <= self._end:
            key, kind, number = HEADER.unpack_from(buffer, at)
            begin = at + _FRAME
            if kind in _LISTED:
                end, text = begin + number * _INT_BYTES, 0
            else:
                sized = kind in _WITH_TEXT
                end = begin + (number if sized or kind in _ENCODED else 0)
                text = number if sized else COUNT.size if kind in _ENCODED else 0
            if end > self._end:
                break
            yield key, kind, number, self._base + begin, bytes(buffer[begin : begin + text]) if text else b""
            at = end
        self._begin = at

    def _make_room(self, room: int) -> None:
        # LoadGen copies tokens out of this array by their addresses: it must not move while they are in use.
        self._array = array("B", bytes(room))
        self._base = self._array.buffer_info()[0]
        self._buffer = memoryview(self._array)
