"""Reports answers to LoadGen, by the convention of the benchmark's reference; runs in the reading thread."""

import ctypes
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from cm4vllm.loadgen.client.sample_times import SampleTimes
from cm4vllm.loadgen.client.workers import Answer, WholeAnswer
from cm4vllm.loadgen.process.kept_answers import Answer as KeptAnswer
from cm4vllm.loadgen.process.kept_answers import AnswerWriter
from cm4vllm.records.run import RunSettings

_INT_BYTES = 4


class Reporter:
    """The receiver of a run. `failed_once` is called at the first failure, with its cause.

    `times` gets the time of each first token and each end. `indices` has the sample of each query that is open; with
    it, answers are given to `writer` before LoadGen hears of them. `token_count` is the number of
    tokens that were reported to LoadGen.
    """

    def __init__(
        self,
        loadgen: Any,
        settings: RunSettings,
        failed_once: Callable[[str], None],
        times: SampleTimes,
        *,
        indices: dict[int, int] | None = None,
        writer: AnswerWriter | None = None,
    ) -> None:
        """Take LoadGen's module, the settings, what is called at the first failure, and the times of the samples."""
        self.completed_count = self.failed_count = self.token_count = 0
        self._loadgen = loadgen
        self._report_first = settings.terms.first_token
        self._left_out = 1 if self._report_first and not settings.terms.first_token_reported_again else 0
        self._failed_once = failed_once
        self._times = times
        self._indices = indices
        self._writer = writer
        # Answers that are kept are given in LoadGen's thread, while others come in the reading thread.
        self._lock = threading.Lock()

    def given(self, answers: Sequence[tuple[int, KeptAnswer]]) -> None:
        """These queries were answered in an earlier piece of the run."""
        held = [array("B", answer.data) for _, answer in answers]  # its bytes stay in place until LoadGen has them
        whole = [
            (key, data.buffer_info()[0] if data else 0, answer.tokens, answer.at_length, len(data))
            for (key, answer), data in zip(answers, held, strict=True)
        ]
        self.first_tokens([(key, address, 1) for key, address, *_ in whole])
        self.completed(whole, new=False)

    def first_tokens(self, answers: Sequence[Answer]) -> None:
        """Report first tokens to LoadGen at once, and note when."""
        if not self._report_first:
            return
        with self._lock:
            response = self._loadgen.QuerySampleResponse
            responses = [response(key, address, count * _INT_BYTES) for key, address, count in answers]
            now_ns = time.monotonic_ns()
            self._loadgen.FirstTokenComplete(responses)
            self._times.first_tokens(now_ns, answers)

    def completed(self, answers: Sequence[WholeAnswer], *, new: bool = True) -> None:
        """Report whole answers to LoadGen; `new` is False for those that were kept from before."""
        with self._lock:
            self._report(answers, new=new)

    def _report(self, answers: Sequence[WholeAnswer], *, new: bool) -> None:
        """Report whole answers to LoadGen and count their tokens, with the lock held."""
        response, left_out = self._loadgen.QuerySampleResponse, self._left_out
        responses = []
        for key, address, count, _, size in answers:
            reported = count - left_out
            self.token_count += reported
            # Where only the number of tokens is known, LoadGen gets no data: nothing stands for the tokens.
            responses.append(
                response(key, address + left_out * _INT_BYTES, size - left_out * _INT_BYTES, reported)
                if size > left_out * _INT_BYTES
                else response(key, 0, 0, reported)
            )
        # Before LoadGen hears of them: where it loads the dataset in parts, it then gives their keys to other queries.
        kept = self._with_samples(answers)
        if self._writer is not None and new:
            self._writer.write(kept)
        now_ns = time.monotonic_ns()
        # LoadGen copies the tokens during the call.
        self._loadgen.QuerySamplesComplete(responses)
        self._times.completed(now_ns, answers)
        self.completed_count += len(responses)

    def _with_samples(self, answers: Sequence[WholeAnswer]) -> list[tuple[int, KeptAnswer]]:
        """Return the sample of each answer of which more than a count is known; nothing where none are kept."""
        indices = self._indices
        if indices is None:
            return []
        samples = [indices.pop(key) for key, *_ in answers]
        return [
            (sample, KeptAnswer(ctypes.string_at(address, size), count, at_length))
            for sample, (_, address, count, at_length, size) in zip(samples, answers, strict=True)
            if address
        ]

    def failed(self, key: int, cause: str, *, first_token_seen: bool) -> None:
        """Complete the query empty, so that LoadGen can end; the run as a whole fails."""
        empty = [self._loadgen.QuerySampleResponse(key, 0, 0, 0)]
        if self._report_first and not first_token_seen:
            # Without it LoadGen 6.0.17 reads past its table of first tokens (logging.cc, RecordSampleCompletion).
            self._loadgen.FirstTokenComplete(empty)
        self._loadgen.QuerySamplesComplete(empty)
        self.failed_count += 1
        if self.failed_count == 1:
            self._failed_once(cause)
