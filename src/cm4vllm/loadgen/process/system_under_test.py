"""LoadGen's system under test: passes queries to the workers, and the workers' answers and progress back."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from cm4vllm.common.errors import CmError, RunFailed
from cm4vllm.loadgen.client.client_counts import total
from cm4vllm.loadgen.client.process_metrics import ProcessMetrics, stop_garbage_collection
from cm4vllm.loadgen.client.sample_times import SampleTimes
from cm4vllm.loadgen.client.text_tokens import added_up
from cm4vllm.loadgen.client.workers import Workers, worker_settings
from cm4vllm.loadgen.process.kept_answers import AnswerWriter, kept_answers
from cm4vllm.loadgen.process.live_latencies import LiveLatencies
from cm4vllm.loadgen.process.messages import Failed, FirstFailure, Message, Progress
from cm4vllm.loadgen.process.reporter import Reporter
from cm4vllm.loadgen.process.run_status import LatencyStatus
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.records.client import ClientRecord, FinishReasons, SelfCheck
from cm4vllm.records.run import RunSettings, fewer_open_requests
from cm4vllm.rules import Mode

#: Seconds that a failed run goes on, so that its report distinguishes one bad request from a server that is gone.
GRACE_S = 1.0
#: The begins of the causes with which a server refuses what is too much at a time.
_CROWDED = ("HTTP status 429", "HTTP status 503", "cannot connect", "the server closed the connection")
#: Seconds between two progress messages.
PROGRESS_INTERVAL_S = 1.0


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
        """Stop the workers and write what is left of answers and progress."""
        self._over.set()
        self._progress_thread.join()
        with self._ending:
            self._workers.close()
        if self._writer is not None:
            self._writer.close()
        self._latencies()
        self._process = self._metrics.record()
        if error is None and self._reporter.failed_count:
            raise self._failure()

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
            try:
                if error is None:
                    self._workers.close()
                self._process = self._metrics.record()
                reason = error or self._failure()
                self._send(
                    Failed(
                        exit_code=reason.exit_code,
                        what=reason.what,
                        cause=reason.cause,
                        remedy=reason.remedy,
                        client=self.record(),
                    )
                )
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                # Also after an error in this thread: LoadGen would wait for ever.
                os._exit((error or RunFailed).exit_code)

    def _failure(self) -> RunFailed:
        """Return the error for a run with failed requests, with the most frequent causes."""
        failures = self._workers.failures
        causes = "\n".join(f"{count} x {cause}" for cause, count in failures.most_common(5))
        settings, server = self._settings, self._settings.server
        log = f" (its log: {server.log})" if server.log else ""
        return RunFailed(
            f"{failures.total()} of {self._issued} requests of the {settings.title} run failed",
            cause=causes,
            remedy=f"see what the server reports{log}, then run again; no part of this run counts as a result"
            + (
                f"\nif it takes no more at a time, give it {fewer_open_requests(at_once=settings.terms.at_once)}"
                if _is_crowded(failures)
                else ""
            ),
        )


def _is_crowded(causes: Iterable[str]) -> bool:
    """Return True if the server may have refused requests because they were too many at a time."""
    return any(cause.startswith(_CROWDED) for cause in causes)
