"""The client of cm4vllm as a run has it, without LoadGen: a worker process, and the thread that reads from it."""

import ctypes
import os
from array import array
from collections.abc import Sequence

from clients.task import PROMPTS, Done, First, Task, bodies, prompt
from cm4vllm.common.errors import CmError
from cm4vllm.loadgen.client.worker_messages import WorkerSettings
from cm4vllm.loadgen.client.workers import Answer, WholeAnswer, Workers
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.records.server import Api
from cm4vllm.serving.answers.stated import AnswerLimits


class Ours:
    """A worker that has all queries."""

    def __init__(self, task: Task, first: First, done: Done) -> None:
        self._first, self._done = first, done
        said = iter(bodies(task))
        prompts = [prompt(index, task.prompt_tokens, task.vocabulary) for index in range(min(PROMPTS, task.queries))]
        library = SampleLibrary(prompts, lambda _: next(said))
        library.load(range(len(prompts)))
        self._records = library.records
        settings = WorkerSettings(
            name="worker 0",
            endpoints=[task.url],
            ca_file="",
            api=Api.COMPLETIONS,
            stream_interval=task.interval if task.streamed else 0,
            limits=AnswerLimits(min_tokens=1, max_tokens=task.tokens, max_model_len=131_072),
            max_in_flight=task.in_flight,
        )
        self._workers = Workers([settings], library.descriptor, self, _broken)
        self.close = self._workers.close

    def submit(self, queries: Sequence[tuple[int, int]]) -> None:
        count = len(self._records)
        self._workers.issue((key, *self._records[index % count]) for key, index in queries)

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
