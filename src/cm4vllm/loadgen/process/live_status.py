"""Status of a running LoadGen test, from the messages of its process, its log and the metrics of the server."""

import math
import re
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cm4vllm.common.student import student_t
from cm4vllm.loadgen.process.messages import ClientStatus, Progress, RunStatus, ServerStatus, TimeLeft
from cm4vllm.records.client import SelfCheck
from cm4vllm.records.doubts import times_the_load
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.run import RunSettings
from cm4vllm.rules import Mode
from cm4vllm.serving.probing.server_metrics import MetricsWatch

#: Seconds over which the present rate is taken.
RATE_S = 10.0
#: Parts of a run whose rates say how much the rate varies.
_PARTS = 6
_BEGIN = Progress(done=0, waiting=0, total=None, elapsed_s=0.0, tokens=0)
#: LoadGen writes what it generated, and its settings, within the first so many bytes of its log.
_LOG_BYTES = 2**18
_ENTRY = re.compile(
    r'"key": "(effective_min_duration_ms|effective_min_query_count|generated_query_count|'
    r'generated_samples_per_query|generated_query_duration)", "value": (\d+)'
)


@dataclass(frozen=True)
class Plan:
    """LoadGen's plan for a run: its samples (None if their number is not known before the end), its least seconds."""

    samples: int | None
    seconds: float


def plan_of(folder: Path, settings: RunSettings) -> Plan | None:
    """Return the facts in LoadGen's log about the run that it has begun; None until they are there."""
    try:
        with (folder / DETAIL_LOG).open(encoding="utf-8", errors="replace") as log:
            entries = {key: int(value) for key, value in _ENTRY.findall(log.read(_LOG_BYTES))}
    except OSError:
        return None
    if len(entries) < 5:
        return None
    samples = entries["generated_query_count"] * entries["generated_samples_per_query"]
    if settings.mode is not Mode.PERFORMANCE or settings.terms.at_once:
        return Plan(samples, 0.0)
    if settings.terms.paced:
        return Plan(samples, entries["generated_query_duration"] / 1e9)
    # One by one: it goes on until both have been reached.
    return Plan(None, entries["effective_min_duration_ms"] / 1000)


class LiveStatus:
    """The status of the run whose logs come into `folder`; `take` is called with each progress of the process."""

    def __init__(self, settings: RunSettings, folder: Path, watch: MetricsWatch) -> None:
        """Take the settings of the run, its folder, and the watch over the server's metrics."""
        self._settings = settings
        self._folder = folder
        self._watch = watch
        self._check: SelfCheck | None = None
        self._plan: Plan | None = None
        self._recent: deque[Progress] = deque()
        self._marks: list[tuple[float, int]] = [(0.0, 0)]

    def take_self_check(self, check: SelfCheck) -> RunStatus:
        """Take the self-check of the client; return the status that is known now."""
        self._check = check
        return RunStatus(title=self._settings.title, client=self._client(0.0, None))

    def take(self, news: Progress) -> RunStatus:
        """Take a message of the process, and return the status that is known now."""
        self._plan = self._plan or plan_of(self._folder, self._settings)
        self._recent.append(news)
        while news.elapsed_s - self._recent[0].elapsed_s > RATE_S:
            self._recent.popleft()
        if news.done > self._marks[-1][1]:
            self._marks.append((news.elapsed_s, news.done))
            if len(self._marks) > 40 * _PARTS:  # thin them out: what counts is spread over the whole run
                self._marks = [*self._marks[:-1:2], self._marks[-1]]
        before = self._recent[0] if len(self._recent) > 1 else _BEGIN
        took = (news.elapsed_s - before.elapsed_s) or math.inf
        rate = (news.done - before.done) / took  # samples/s
        total = news.total or (self._plan.samples if self._plan else None)
        return RunStatus(
            title=self._settings.title,
            elapsed_s=news.elapsed_s,
            done=news.done,
            total=total,
            in_flight=news.waiting,
            tokens=news.tokens,
            samples_per_second=round(rate, 3),
            tokens_per_second=round((news.tokens - before.tokens) / took, 1),
            left=self._time_left(news, total, rate),
            latencies=news.latencies,
            server=self._server(),
            client=self._client(news.elapsed_s, news),
        )

    def _time_left(self, news: Progress, total: int | None, rate: float) -> TimeLeft | None:
        """Return the time left in s. A run of fixed duration ends when the requests then in flight are answered."""
        planned = self._plan.seconds if self._plan else 0.0
        if not planned:
            return time_left(self._marks, total - news.done, news.elapsed_s) if total is not None else None
        if not rate:
            return None
        # Little's law: the mean time to an answer, and where requests pile up, the time that they take.
        mean = news.waiting / rate
        whole = next((latency for latency in news.latencies if latency.name == "answer"), None)
        left = max(0.0, planned - news.elapsed_s)
        return TimeLeft(
            seconds=round(left + mean, 1),
            low=round(left + mean / 2, 1),
            high=round(left + max(2 * mean, whole.p99_ms / 1000 if whole else 0.0), 1),
        )

    def _server(self) -> ServerStatus | None:
        """Return the server's present state by its metrics, None before the first sample."""
        if not (samples := self._watch.samples):
            return None
        first, last = samples[0], samples[-1]
        return ServerStatus(
            running=last.running,
            waiting=last.waiting,
            kv_cache_usage=round(last.kv_cache_usage, 4),
            preemptions=last.preemptions - first.preemptions,
            cached_prompt_tokens=last.cached_prompt_tokens - first.cached_prompt_tokens,
        )

    def _client(self, elapsed_s: float, news: Progress | None) -> ClientStatus | None:
        """Return how many times the present load the client could carry, None before the self-check."""
        if (check := self._check) is None:
            return None
        room = times_the_load(check, self._settings, news.done, news.tokens, elapsed_s) if news else None
        return ClientStatus(
            workers=check.workers, capacity_qps=check.capacity_qps, headroom=None if room is None else round(room, 2)
        )


def time_left(marks: list[tuple[float, int]], todo: int, now_s: float) -> TimeLeft | None:
    """Return how long `todo` samples take at the rate so far; None where too little is known.

    `marks` are times, from the first query on, at which so many samples were done. The rates of equal parts of the time
    say how much the rate varies.
    """
    end, done = marks[-1]
    if todo <= 0:
        return TimeLeft(seconds=0.0, low=0.0, high=0.0)
    if len(marks) <= _PARTS or not done:
        return None
    edges = [min(marks, key=lambda mark: abs(mark[0] - end * part / _PARTS)) for part in range(_PARTS + 1)]
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(edges) if b[0] > a[0]]
    mean = done / end
    spread = math.sqrt(sum((rate - mean) ** 2 for rate in rates) / max(1, len(rates) - 1))
    half = student_t(0.975, _PARTS - 1) * spread / math.sqrt(len(rates)) * math.sqrt(1 + done / todo)
    waited = now_s - end

    def seconds(rate: float) -> float:
        """Return the seconds until all is answered at a rate."""
        return round(max(0.0, todo / rate - waited), 1)

    return TimeLeft(seconds=seconds(mean), low=seconds(mean + half), high=seconds(max(mean - half, mean / 10)))
