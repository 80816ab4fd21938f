"""The client of cm4vllm as a run has it, without LoadGen: worker processes, and the thread that reads from them."""

import ctypes
import os
from array import array
from collections.abc import Sequence

from clients.closed_loop import Done, First
from clients.task import PROMPTS, Task, bodies, prompt
from cm4vllm.common.errors import CmError
from cm4vllm.loadgen.client.worker_messages import WorkerSettings
from cm4vllm.loadgen.client.workers import Answer, WholeAnswer, Workers
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.records.server import Api
from cm4vllm.serving.answers.stated import AnswerLimits


class Ours:
    """Workers that share the in-flight bound, and all servers."""

    def __init__(self, task: Task, first: First, done: Done) -> None:
        self._first, self._done = first, done
        said = iter(bodies(task))
        prompts = [prompt(index, task.prompt_tokens, task.vocabulary) for index in range(min(PROMPTS, task.queries))]
        library = SampleLibrary(prompts, lambda _: next(said))
        library.load(range(len(prompts)))
        self._records = library.records
        endpoints = [f"http://127.0.0.1:{port}" for port in (task.port, *task.more_ports)]
        limits = AnswerLimits(min_tokens=1, max_tokens=task.tokens, max_model_len=131_072)
        share = -(-task.in_flight // task.workers)
        self._workers = Workers(
            [
                WorkerSettings(
                    name=f"worker {number}",
                    endpoints=endpoints,
                    ca_file="",
                    api=Api.COMPLETIONS,
                    stream_interval=task.interval if task.streamed else 0,
                    limits=limits,
                    max_in_flight=share,
                )
                for number in range(task.workers)
            ],
            library.descriptor,
            self,
            _broken,
        )

    def submit(self, queries: Sequence[tuple[int, int]]) -> None:
        count = len(self._records)
        self._workers.issue((key, *self._records[index % count]) for key, index in queries)

    def close(self) -> None:
        self._workers.close()

    def first_tokens(self, answers: Sequence[Answer]) -> None:
        for key, address, _ in answers:
            self._first(key, ctypes.c_int.from_address(address).value)

    def completed(self, answers: Sequence[WholeAnswer]) -> None:
        for key, address, count, *_ in answers:
            self._done(key, array("i", ctypes.string_at(address, 4 * count)))  # as LoadGen does, the tokens are copied

    def failed(self, key: int, cause: str, *, first_token_seen: bool) -> None:
        _broken(cause)


def _broken(error: CmError | str) -> None:
    print(error)
    os._exit(1)  # called in the reading thread: the main one would wait for ever
