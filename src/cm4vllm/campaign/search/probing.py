"""A search on a real server: each probe is a LoadGen Server run, which is ended as soon as its verdict is certain.

A full-length run of a search is LoadGen's run by the rules, with the settings of the run that follows the search.
"""

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

from msgspec.structs import asdict, replace

from cm4vllm.campaign.planning.steps import REHEARSAL_SEARCH_S
from cm4vllm.campaign.search.probe_verdict import Judge, ProbePlan, probe_record
from cm4vllm.campaign.search.projection import FullLength, Window
from cm4vllm.campaign.search.rate_search import STEP_DOWN, SearchPlan, queueing_estimate, search
from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.files import writable_folder
from cm4vllm.common.folders.owned_folders import discard, staged_folder
from cm4vllm.common.progress import say, step, warn
from cm4vllm.common.records import read_record, remove_record, write_record
from cm4vllm.hardware.readiness import machine_limits
from cm4vllm.loadgen.identity import settings_sha256
from cm4vllm.loadgen.limits import demand_of, highest_rate
from cm4vllm.loadgen.measurement import RunInputs, settings_of
from cm4vllm.loadgen.process.messages import Latencies
from cm4vllm.loadgen.process.process_monitor import RunStopped
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.user_conf import REHEARSAL_DURATION_S, UserConf, rehearsal_queries
from cm4vllm.records.client import HEADROOM
from cm4vllm.records.doubts import headroom
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.metrics import ServerMetrics, Speed
from cm4vllm.records.run import RunRecord, RunSettings
from cm4vllm.records.searches.rate_search import (
    SEARCH_FILE,
    ProbeRecord,
    SearchOutcome,
    SearchRecord,
    SearchStatus,
    Verdict,
)
from cm4vllm.results.judgement.bottlenecks import FULL, UNEXPLAINED, UNEXPLAINED_MS, Cause
from cm4vllm.rules import LatencyLimits, Terms
from cm4vllm.serving.probing.server_metrics import look
from cm4vllm.serving.probing.server_requests import sites_of
from cm4vllm.serving.supervision.death_reasons import death_reason

#: The record of a probe, in its folder.
PROBE_FILE = "probe.json"
#: The setting that LoadGen logs for a run that issues whole datasets only.
_WHOLE = "sample_concatenate_permutation"
#: LoadGen writes its settings within the first so many characters of its log.
_SETTINGS_BYTES = 2**18
#: A probe goes on for so much longer than it counts queries, until it is ended.
_LONGER = 1.6
#: Seconds that a server may take to give up the requests of a probe that was ended.
_IDLE_S = 30.0


def plan_of(settings: RunSettings, at: Callable[[float], RunSettings]) -> SearchPlan:
    """Return the lengths of probes and the time of the search for a run's rate, which are shorter in a rehearsal.

    `at` gives the settings of a full-length run at a rate: the search goes no higher than the machine allows.
    """
    limits = require_searchable(settings.terms)
    highest, why = highest_rate(lambda rate: demand_of(at(rate)), machine_limits())
    bounded = partial(SearchPlan, limits, highest=highest, why_highest=why)
    if settings.rehearsal:
        return bounded(probes_s=(3.0, 5.0, 8.0), approach_s=30.0, budget_s=REHEARSAL_SEARCH_S)
    return bounded()


def find_target_rate(inputs: RunInputs) -> tuple[SearchRecord, Path]:
    """Search for the highest rate of a scenario; `target_qps` of the inputs is the server's rate Offline.

    The full-length run that passes at the rate found becomes the result in the folder `result_dir` of the inputs.
    Returns the record and its path. Raises UsageError where the scenario has no limits, InvalidResult where no rate
    passes, and the errors of a run.
    """
    folder = writable_folder(inputs.folder)
    settings = _settings(inputs)
    at = partial(full_length_settings, inputs)
    plan = plan_of(settings, at)
    remove_record(folder / SEARCH_FILE, SearchRecord)
    for left in folder.glob("probe-*"):  # of an earlier search: they would be taken for probes of this one
        discard(left)
    start = queueing_estimate(inputs.target_qps or 0.0, plan.limits)
    say(f"search for the {settings.scenario} rate from {start:.4g} queries/s on")
    with step(f"search for the {settings.scenario} rate") as shown:
        ended: list[ProbeRecord] = []

        def begun(number: int, rate: float, plan: ProbePlan) -> None:
            shown.facts = SearchStatus(
                scenario=str(settings.scenario),
                number=number,
                rate=rate,
                planned_s=round(plan.seconds, 1),
                full_length=plan.sure,
            ).after(ended)

        def seen(probe: ProbeRecord) -> None:
            ended.append(probe)
            _say(probe)

        prober = LoadGenProber(settings, folder, at, pythonpath=inputs.pythonpath, begun=begun)
        outcome = search(prober, start, plan, seen)
    result = _hand_over(folder / _probe_folder(outcome.run), inputs) if outcome.run and not settings.rehearsal else ""
    record = _record(
        outcome, settings, start=start, source=f"a queueing estimate from {inputs.target_qps_source}", result=result
    )
    write_record(folder / SEARCH_FILE, record)
    say(f"search for the {settings.scenario} rate: {record.words}; it ended: {record.stopped}")
    if record.drift:
        warn(record.drift)
    return record, folder / SEARCH_FILE


def earlier_search(inputs: RunInputs) -> SearchRecord | None:
    """Return the record of the search in the folder of the inputs, if it was made with the same settings."""
    path = inputs.folder / SEARCH_FILE
    if not path.exists():
        return None
    try:
        record = read_record(path, SearchRecord)
    except CmError:  # of another version: the search is made again
        return None
    return record if record.settings_sha256 == settings_sha256(_settings(inputs)) else None


def _settings(inputs: RunInputs) -> RunSettings:
    """Return the settings of the runs of a search, whose rates and user.conf it sets itself."""
    return settings_of(replace(inputs, user_conf=""))


def require_searchable(terms: Terms) -> LatencyLimits:
    """Return the limits that a search keeps. Raises UsageError for a scenario whose rate cannot be searched for."""
    if terms.limits is None or not terms.paced:
        raise UsageError(
            f"the {terms.scenario} scenario has no rate to search for",
            cause="LoadGen issues its samples at once, or no latency limit is set",
            remedy="search in a scenario that LoadGen paces, such as --scenario=Server",
        )
    return terms.limits


class LoadGenProber:
    """Makes probes with the settings of a run, at other rates and lengths; each leaves a folder below `folder`.

    `at` gives the settings of a full-length run at a rate. `begun` is called with each probe before it begins.
    """

    def __init__(
        self,
        settings: RunSettings,
        folder: Path,
        at: Callable[[float], RunSettings],
        *,
        pythonpath: str = "",
        begun: Callable[[int, float, ProbePlan], None] = lambda number, rate, plan: None,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._at = at
        self._pythonpath = pythonpath
        self._begun = begun
        self._number = 0
        seconds = REHEARSAL_DURATION_S if settings.rehearsal else settings.terms.min_duration_ms / 1000
        least = rehearsal_queries(settings.terms) if settings.rehearsal else 1
        self.full = FullLength(seconds, settings.terms.seeds.schedule, least=least)

    def probe(self, rate: float, plan: ProbePlan) -> tuple[ProbeRecord, Window]:
        """Make one probe. Raises ServerDied, ServerStuck, RunFailed and the other errors of a run."""
        self._number += 1
        self._begun(self._number, rate, plan)
        folder = self._folder / _probe_folder(self._number)
        judge = Judge(require_searchable(self._settings.terms), rate, plan)
        least_ms = round(1000 * _LONGER * plan.seconds)
        part = settings_of_part(self._settings, rate, least_ms, source=f"probe {self._number} of a search")
        verdicts: list[Verdict] = []
        begin = time.monotonic()

        def take(news: Latencies) -> bool:
            if not verdicts and (verdict := judge.take(news)) is not None:
                verdicts.append(verdict)
            return bool(verdicts)

        metrics, made = run_or_part(self._at(rate) if plan.sure else part, folder, take, self._pythonpath)
        verdict = verdicts[0] if verdicts else None
        if plan.sure and made is not None:
            passed = read_performance(folder).valid
            if self._settings.rehearsal:  # which may be too short to be valid
                passed = all(limit.p99_ms is not None and limit.p99_ms <= limit.limit_ms for limit in judge.limits())
            verdict = Verdict.PASSES if passed else Verdict.FAILS
        record = probe_record(
            self._number,
            rate,
            plan,
            judge,
            verdict,
            took_s=time.monotonic() - begin,
            ended_early=made is None and judge.last.elapsed_s < plan.seconds,
        )
        record = replace(
            record,
            folder=folder.name,
            server=cause_words(record.binding.name if record.binding else "", judge.ttft_ms, metrics, made),
            speed=metrics.speed if metrics else None,
        )
        write_record(folder / PROBE_FILE, record)
        if _issues_whole_datasets(folder):
            self.full = dataclasses.replace(self.full, whole=self._settings.samples)
        return record, judge.window


def run_or_part(
    settings: RunSettings, folder: Path, take: Callable[[Latencies], bool], pythonpath: str
) -> tuple[ServerMetrics | None, RunRecord | None]:
    """Make a run until `take` says of its latencies that it is enough.

    Returns what the server said of itself, and the record of a run that went on to its end. Raises the errors of a run.
    """
    try:
        made = run(
            settings, folder, pythonpath=pythonpath, alive=partial(death_reason, settings.server), on_latencies=take
        )
    except RunStopped as stopped:
        _wait_until_idle(settings)
        return stopped.metrics, None
    return made.server_metrics, made


def _wait_until_idle(settings: RunSettings) -> None:
    """Wait until the servers have dropped the requests of a probe that was ended."""
    deadline = time.monotonic() + _IDLE_S
    for site in sites_of(settings.server):
        while (now := look(site)) is not None and now.running + now.waiting and time.monotonic() < deadline:
            time.sleep(0.2)


def full_length_settings(inputs: RunInputs, rate: float) -> RunSettings:
    """Return the settings of the run that follows the search: by the rules, whatever user.conf an earlier run had."""
    return settings_of(replace(inputs, target_qps=rate, target_qps_source="found by a search", user_conf=""))


def _probe_folder(number: int) -> str:
    return f"probe-{number:02d}"


def _hand_over(run_folder: Path, inputs: RunInputs) -> str:
    """Make a full-length run the result of the scenario: the run that follows finds it, and keeps it."""
    if not inputs.search_result_dir:
        return ""
    result = Path(inputs.search_result_dir)
    writable_folder(result.parent)
    with staged_folder(result) as staging:
        shutil.copytree(run_folder, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(PROBE_FILE))
    return str(result)


def _issues_whole_datasets(folder: Path) -> bool:
    """Return True if LoadGen issues whole datasets only, by the settings that it wrote at the beginning of a probe."""
    try:
        with (folder / DETAIL_LOG).open(encoding="utf-8", errors="replace") as log:
            settings = log.read(_SETTINGS_BYTES)
    except OSError:
        return False
    line = next((line for line in settings.splitlines() if f'"effective_{_WHOLE}"' in line), "")
    return '"value": true' in line


def settings_of_part(
    settings: RunSettings, rate: float, least_ms: int, *, least_queries: int = 2, source: str
) -> RunSettings:
    """Return the settings of a run that is ended early: shorter than the rules ask, and so a rehearsal in any case."""
    conf = UserConf(
        settings.terms,
        True,
        settings.samples,
        rate,
        least_ms,
        min_query_count=least_queries,
        performance_sample_count=settings.samples,
    )
    return replace(settings, rehearsal=True, user_conf=conf.text, target_qps=rate, target_qps_source=source)


def _record(outcome: SearchOutcome, settings: RunSettings, *, start: float, source: str, result: str) -> SearchRecord:
    return SearchRecord(
        **asdict(outcome),
        scenario=str(settings.scenario),
        benchmark=settings.benchmark,
        precision=STEP_DOWN,
        start=round(start, 4),
        start_source=source,
        cost_s=round(sum(probe.took_s for probe in outcome.probes), 3),
        rehearsal=settings.rehearsal,
        result=result,
        drift=drift_words(outcome.probes),
        settings_sha256=settings_sha256(settings),
    )


def _say(probe: ProbeRecord) -> None:
    shares = ", ".join(
        f"{limit.name} p99 {limit.p99_ms or 0:,.1f} of {limit.limit_ms:g} ms, {100 * limit.within:.2f} % within "
        f"({100 * limit.low:.2f} to {100 * limit.high:.2f})"
        for limit in probe.limits
    )
    early = ", ended early" if probe.ended_early else ""
    say(
        f"probe {probe.number}: {probe.rate:g} queries/s {probe.verdict} after {probe.took_s:.0f} s{early}; "
        f"{probe.queries:,} queries, {shares}" + (f"; it fails by {probe.failed_by}" if probe.failed_by else "")
    )


#: The ratio of the times of a step in two probes above which the difference is more than noise.
DRIFT = 1.12
#: Probes are compared whose numbers of running requests overlap, or are so near to each other, as a factor.
NEAR = 1.25


def cause_of(binding: str, ttft_ms: float | None, metrics: ServerMetrics, run: RunRecord | None = None) -> Cause | None:
    """Return the cause that bound a probe whose tightest limit is `binding`; None where the metrics show none.

    `ttft_ms` is the mean that the client saw, `run` the record of a probe that was not ended early: it alone tells how
    much more the client could carry.
    """
    room = headroom(run) if run is not None else None
    if room is not None and room < HEADROOM:
        return Cause.CLIENT
    if metrics.preemptions or (metrics.kv_cache_usage_max >= FULL and metrics.waiting_mean >= 1):
        return Cause.KV_CACHE
    if binding != "TTFT":
        return Cause.DECODE if metrics.decode else None
    if metrics.queue is None or metrics.prefill is None:
        return None
    engine_ms = metrics.queue.mean_ms + metrics.prefill.mean_ms
    if ttft_ms is not None and ttft_ms >= UNEXPLAINED * engine_ms + UNEXPLAINED_MS:
        return Cause.HOST
    return Cause.QUEUE if metrics.queue.mean_ms >= metrics.prefill.mean_ms else Cause.PREFILL


def cause_words(
    binding: str, ttft_ms: float | None, metrics: ServerMetrics | None, run: RunRecord | None = None
) -> str:
    """Return the cause with its numbers, empty for a server without metrics."""
    if metrics is None:
        return ""
    cause = cause_of(binding, ttft_ms, metrics, run)
    numbers = ", ".join(_numbers(metrics))
    return f"{cause}: {numbers}" if cause else numbers


def _numbers(metrics: ServerMetrics) -> Iterator[str]:
    yield f"{metrics.waiting_mean:g} requests waited on average, up to {metrics.waiting_max}"
    yield f"KV cache up to {100 * metrics.kv_cache_usage_max:.0f} % used, {metrics.preemptions} preemptions"
    for name in ("queue", "prefill", "decode"):
        if (timing := getattr(metrics, name)) is not None:
            yield f"mean time in {name} {timing.mean_ms:,.1f} ms"
    if metrics.speed is not None and metrics.speed.slowed:
        yield metrics.speed.words


def drift_words(probes: Sequence[ProbeRecord]) -> str:
    """Return by how much the server's speed differed between probes of the same load; empty where it hardly did."""
    worst, words = DRIFT, ""
    for probe, other in combinations(probes, 2):
        if (
            probe.speed is None
            or other.speed is None
            or (running := _common_requests(probe.speed, other.speed)) is None
        ):
            continue
        (fast_ms, fast), (slow_ms, slow) = sorted(
            [(probe.speed.step_ms(running), probe.number), (other.speed.step_ms(running), other.number)]
        )
        if slow_ms >= worst * fast_ms > 0:
            worst = slow_ms / fast_ms
            words = (
                f"the server's speed changed during the search: with {running:.0f} requests a step took {fast_ms:.1f} "
                f"ms in probe {fast} and {slow_ms:.1f} ms in probe {slow}"
            )
    return words


def _common_requests(speed: Speed, other: Speed) -> float | None:
    """Return the number of requests at which two speeds are compared: the middle of the common range, or of the gap."""
    begin, end = max(speed.low, other.low), min(speed.high, other.high)
    return (begin + end) / 2 if begin <= NEAR * end else None
