"""LoadGen's system under test: passes queries to the workers, and the workers' answers and progress back."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import traceback
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from cm4vllm.common.errors import CmError, RunFailed
from cm4vllm.loadgen.client.process_metrics import ProcessMetrics, stop_garbage_collection
from cm4vllm.loadgen.client.sample_times import SampleTimes
from cm4vllm.loadgen.client.text_tokens import added_up
from cm4vllm.loadgen.client.worker_messages import total
from cm4vllm.loadgen.client.workers import Answer, WholeAnswer, Workers, worker_settings
from cm4vllm.loadgen.process.kept_answers import Answer as KeptAnswer
from cm4vllm.loadgen.process.kept_answers import AnswerWriter, kept_answers
from cm4vllm.loadgen.process.live_latencies import LiveLatencies
from cm4vllm.loadgen.process.messages import Failed, FirstFailure, LatencyStatus, Message, Progress
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.records.client import ClientRecord, FinishReasons, SelfCheck
from cm4vllm.records.run import RunSettings, fewer_open_requests
from cm4vllm.rules import Mode
from cm4vllm.serving.answers.admission import admission_limits, higher_limits

#: Seconds that a failed run goes on, so that its report distinguishes one bad request from a server that is gone.
GRACE_S = 1.0
#: The begins of the causes with which a server refuses what is too much at a time.
_CROWDED = ("HTTP status 429", "HTTP status 503", "cannot connect", "the server closed the connection")
#: Seconds between two progress messages.
PROGRESS_INTERVAL_S = 1.0
_INT_BYTES = 4


class Reporter:
    """The receiver of a run, in the reading thread: it reports answers to LoadGen, by the convention of the reference.

    `failed_once` is called at the first failure, with its cause.

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
        """Report to LoadGen the answers of an earlier piece of the run."""
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


class SystemUnderTest:
    """Use as a context manager around LoadGen's test; `issue` is what LoadGen calls.

    A query that cannot be answered is completed empty. Then the process reports why and ends, because LoadGen cannot be
    stopped and no part of the run can be used.
    """

    def __init__(
        self,
        loadgen: Any,
        settings: RunSettings,
        library: SampleLibrary,
        workers: int,
        *,
        send: Callable[[Message], None],
        show_latencies: bool = False,
        answers: Path | None = None,
    ) -> None:
        """Take LoadGen's module, the settings, the samples and the number of workers; `send` passes messages on."""
        self._settings = settings
        self._library = library
        self._send = send
        self.times = SampleTimes()
        terms = settings.terms
        limited = terms.first_token or (terms.paced and terms.limits is not None)
        timed = settings.mode is Mode.PERFORMANCE and (limited or show_latencies)
        self._live = LiveLatencies(self.times, terms.limits) if timed else None
        self._shows_latencies = show_latencies
        self._kept = kept_answers(answers) if answers else {}
        self._writer = AnswerWriter(answers) if answers else None
        self._kept_counts = Counter[str]()
        self._indices: dict[int, int] | None = {} if answers else None
        self._reporter = Reporter(
            loadgen, settings, self._on_first_failure, self.times, indices=self._indices, writer=self._writer
        )
        self._workers = Workers(worker_settings(settings, workers), library.descriptor, self._reporter, self._end)
        self._issued = 0
        self._begin = time.monotonic()
        self._watching_s = 0.0
        self._over = threading.Event()
        self._ending = threading.Lock()
        self._progress_thread = threading.Thread(target=self._send_progress, name="progress", daemon=True)

    def __enter__(self) -> SystemUnderTest:
        stop_garbage_collection()
        self._metrics = ProcessMetrics("LoadGen")
        self._progress_thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop the workers and write what is left of answers and progress; end the process where requests failed."""
        self._over.set()
        self._progress_thread.join()
        with self._ending:
            self._workers.close()
        if self._writer is not None:
            self._writer.close()
        self._latencies()
        self._process = self._metrics.record()
        if error is None and self._reporter.failed_count:
            failure = self._failure()
            self._report(failure)
            os._exit(failure.exit_code)

    def issue(self, samples: Sequence[Any]) -> None:
        """Pass samples to the workers; called by LoadGen on its thread."""
        if not self._issued:
            self._begin = time.monotonic()
            if self._writer is not None:
                self._writer.begin()
        self._issued += len(samples)
        if self._indices is not None:
            self._indices.update((sample.id, sample.index) for sample in samples)
        if self._kept:
            self._give([sample for sample in samples if sample.index in self._kept])
            samples = [sample for sample in samples if sample.index not in self._kept]
        records = self._library.records
        indices = [sample.index for sample in samples]
        queries = [(sample.id, *records[index]) for sample, index in zip(samples, indices, strict=True)]
        now_ns = time.monotonic_ns()
        if queries:
            self._workers.issue(queries)
        # Behind it: no query waits for this.
        self.times.issued(now_ns, ((query[0], index, query[3]) for query, index in zip(queries, indices, strict=True)))

    def _give(self, samples: Sequence[Any]) -> None:
        """Pass to LoadGen the answers of an earlier piece of the run."""
        now_ns, records = time.monotonic_ns(), self._library.records
        self.times.issued(now_ns, ((sample.id, sample.index, records[sample.index][2]) for sample in samples))
        for sample in samples:
            answer = self._kept[sample.index]
            self._kept_counts.update(
                answers=1, prompt=records[sample.index][2], completion=answer.tokens, length=answer.at_length
            )
        if samples:
            self._reporter.given([(sample.id, self._kept[sample.index]) for sample in samples])

    def record(self, self_check: SelfCheck | None = None) -> ClientRecord:
        """Return the client's record, after its end."""
        kept = self._kept_counts
        stats = sorted(self._workers.stats, key=lambda stats: (len(stats.process.name), stats.process.name))
        counts = total(each.counts for each in stats)
        return ClientRecord(
            requests=self._issued,
            completed=self._reporter.completed_count,
            failed=self._reporter.failed_count,
            retries=counts.retries,
            kept=kept["answers"],
            prompt_tokens=counts.prompt_tokens + kept["prompt"],
            completion_tokens=counts.completion_tokens + kept["completion"],
            finish_reasons=FinishReasons(
                stop=counts.completed - counts.at_length + kept["answers"] - kept["length"],
                length=counts.at_length + kept["length"],
            ),
            at_once=counts.at_once,
            reported_tokens=self._reporter.token_count,
            text=added_up((each.text for each in stats), prompts_changed=self._library.prompts_changed),
            failures=dict(self._workers.failures),
            connections=counts.connections,
            longest_connect_s=round(counts.longest_connect_s, 4),
            server_prompt_tokens=counts.server_prompt_tokens,
            cached_prompt_tokens=counts.cached_prompt_tokens,
            least_more=counts.least_more,
            most_more=counts.most_more,
            first_tokens=counts.first_tokens,
            models=counts.models,
            processes=[
                replace(self._process, watching_s=round(self._watching_s, 4)),
                *(each.process for each in stats),
            ],
            self_check=self_check,
        )

    def _send_progress(self) -> None:
        """Send the progress of the run at each interval, until it is over."""
        while not self._over.wait(PROGRESS_INTERVAL_S):
            latencies = self._latencies()
            reporter = self._reporter
            # Only LoadGen knows the number of queries that a paced performance run will issue.
            known = self._settings.terms.at_once or self._settings.mode is Mode.ACCURACY
            done = reporter.completed_count + reporter.failed_count
            self._send(
                Progress(
                    done=done,
                    waiting=self._issued - done,
                    total=max(self._issued, self._settings.samples) if known else None,
                    elapsed_s=round(time.monotonic() - self._begin, 3) if self._issued else 0.0,
                    tokens=reporter.token_count,
                    latencies=latencies,
                )
            )
            self._watching_s = time.thread_time()

    def _latencies(self) -> tuple[LatencyStatus, ...]:
        """Return the status of the latencies so far, with those of each new answer where they were asked for."""
        if self._live is None:
            return ()
        news = self._live.take(answers=self._shows_latencies)
        if self._shows_latencies:
            self._send(news)
        return self._live.status()

    def _on_first_failure(self, cause: str) -> None:
        self._send(FirstFailure(cause=cause))
        threading.Thread(target=self._end_after_grace, name="grace", daemon=True).start()

    def _end_after_grace(self) -> None:
        if not self._over.wait(GRACE_S):
            self._end(None)

    def _end(self, error: CmError | None) -> None:
        """Report `error`, or else the requests that failed, and end the process."""
        with self._ending:
            if error is None and self._over.is_set():
                return  # the run has ended meanwhile, and reports its failures itself
            try:
                if error is None:
                    self._workers.close()
                self._process = self._metrics.record()
                self._report(error or self._failure())
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                # Also after an error in this thread: LoadGen would wait for ever.
                os._exit((error or RunFailed).exit_code)

    def _report(self, reason: CmError) -> None:
        """Report why the run failed, and what the client saw."""
        self._send(
            Failed(
                exit_code=reason.exit_code,
                what=reason.what,
                cause=reason.cause,
                remedy=reason.remedy,
                client=self.record(),
            )
        )

    def _failure(self) -> RunFailed:
        """Return the error for a run with failed requests, with the most frequent causes."""
        failures, settings = self._workers.failures, self._settings
        log = f" (its log: {settings.server.log})" if settings.server.log else ""
        remedy = f"see what the server reports{log}, then run again; no part of this run counts as a result"
        causes = [f"{count} x {cause}" for cause, count in failures.most_common(5)]
        fewer = fewer_open_requests(at_once=settings.terms.at_once)
        if limits := admission_limits(failures):
            causes.append(f"the server's admission control rejects requests ({limits})")
            remedy = f"{higher_limits(limits)}; or give it {fewer}; no part of this run counts as a result"
        elif any(cause.startswith(_CROWDED) for cause in failures):  # they may have been too many at a time
            remedy += f"\nif it takes no more at a time, give it {fewer}"
        return RunFailed(
            f"{failures.total()} of {self._issued} requests of the {settings.title} run failed",
            cause="\n".join(causes),
            remedy=remedy,
        )
