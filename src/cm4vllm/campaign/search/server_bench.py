"""Candidates of server settings measured on real servers: each is started, and asked by short LoadGen runs.

The score in Offline is the rate in tokens/s at which the server itself generated after a third of the time, when its
batch is full. The score in a scenario whose queries come at their own times is the highest rate in queries/s whose
probes keep the limits: at one common rate, all queries or none of most candidates would keep them. The probes begin at
the rate at which the server answers samples that come at once, which the first start measures. The score in a scenario
whose queries follow each other is the rate in answers/s.
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from cm4vllm.campaign.search.possible_gain import PARTS, interval_of_parts
from cm4vllm.campaign.search.probe_verdict import ProbePlan
from cm4vllm.campaign.search.probing import (
    LoadGenProber,
    full_length_settings,
    require_searchable,
    run_or_part,
    settings_of_part,
)
from cm4vllm.campaign.search.projection import FullLength, Window, largest_but
from cm4vllm.campaign.search.rate_search import Prober
from cm4vllm.campaign.search.search_space import Candidate, candidate_words, words_of
from cm4vllm.common.errors import (
    InvalidResult,
    LimitTooLow,
    ModelError,
    RunFailed,
    ServerDied,
    ServerNotReady,
    ServerStuck,
    ServerUnsuitable,
    UsageError,
)
from cm4vllm.common.files import writable_folder
from cm4vllm.common.folders.owned_folders import begun_folder
from cm4vllm.common.progress import say, warn
from cm4vllm.common.records import read_record, write_record
from cm4vllm.loadgen.measurement import RunInputs, settings_of
from cm4vllm.loadgen.process.messages import Latencies
from cm4vllm.records.metrics import METRICS_FILE, MetricsSample, read_samples
from cm4vllm.records.run import RunSettings
from cm4vllm.records.searches.rate_search import ProbeRecord, Verdict
from cm4vllm.records.searches.settings_search import EVALUATION_FILE, TRIAL, Evaluation, Score, geometric_mean
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import LatencyLimits
from cm4vllm.serving.server import stop

#: The probes that the time is enough for, where none ends early; and how narrow a bracket is not narrowed any more.
PROBES, _NARROW = 5, 0.01
#: The first step up or down, as a factor; without an end in sight its logarithm doubles each time, up to the furthest.
_STEP, _FURTHEST = 1.06, 3.0
#: Where fewer queries than this are issued and none counts, the rate is too low for the probe.
_FEW = 10
#: A rate inside a bracket is so far from its ends, as a part of its logarithm.
_INSIDE = 0.2
#: A probe is at least so many answers long, where half of the time is enough for that.
_ANSWERS_LONG = 3
#: The warm-up of a probe: its least share of the probe, its longest time, and its length in mean answers.
_LEAST_WARM, _MOST_WARM, _ANSWERS_WARM = 1 / 6, 1 / 3, 1.5


def bracket(prober: Prober, scenario: str, start: float, limits: LatencyLimits, seconds: float) -> Score:
    """Probe from the rate `start` on, for `seconds` in all; return the score in a paced scenario.

    Its value lies between the ends of the bracket, where the limits would just be kept; it is the one end where there
    is no other. Raises what the prober raises.
    """
    return _Bracketing(prober, limits, seconds).run(scenario, start)


class _Bracketing:
    """A bracket under way. Of each end the excess is kept: ln(latency that decides / limit), above 0 where it fails."""

    def __init__(self, prober: Prober, limits: LatencyLimits, seconds: float) -> None:
        self._prober = prober
        self._limits = limits.by_name
        self._seconds = seconds
        self._spent = self._answer_s = 0.0
        self._low: tuple[float, float] | None = None
        self._high: tuple[float, float] | None = None

    def run(self, scenario: str, start: float) -> Score:
        rate, step = start, math.log(_STEP)
        each = self._seconds / PROBES
        while self._spent == 0 or self._spent + each <= self._seconds:
            if not self._probe(rate, each):
                each *= 2  # its answers take longer than the probe, or it has hardly a query
                rate *= 2.0 if rate * each < _FEW else 1.0
            elif self._low and self._high:
                if self._high[0] / self._low[0] < 1 + _NARROW:
                    break
                rate = self._interpolated_rate(_INSIDE)
            else:
                step = min(step, math.log(_FURTHEST))
                rate *= math.exp(step if self._low else -step)
                step *= 2
            each = max(each, min(_ANSWERS_LONG * self._answer_s, self._seconds / 2))
        if not (self._low or self._high):
            raise InvalidResult(
                f"no query was counted in {self._spent:.0f} s of probes at {rate:g} queries/s",
                cause="the time of a measurement is too short for answers that long",
            )
        low, high = (end[0] if end else None for end in (self._low, self._high))
        middle = self._interpolated_rate(0.0) if low and high else low or high or 0.0
        return Score(scenario=scenario, value=float(f"{middle:.4g}"), unit="queries/s", low=low, high=high)

    def _probe(self, rate: float, seconds: float) -> bool:
        """Make a probe; say whether a query was counted, or too many were late for that."""
        rate = float(f"{rate:.4g}")
        warm_up = min(max(_LEAST_WARM * seconds, _ANSWERS_WARM * self._answer_s), _MOST_WARM * seconds)
        full_s = self._prober.full.duration(rate)
        probe, window = self._prober.probe(rate, ProbePlan(seconds=seconds, warm_up_s=warm_up, full_s=full_s))
        self._spent += probe.took_s
        self._answer_s = max(self._answer_s, probe.answer_ms / 1000)
        if not probe.queries and probe.verdict is not Verdict.FAILS:
            return False
        excess = _excess(probe, window, self._limits, self._prober.full)
        if excess <= 0:
            self._low = max(self._low or (0.0, 0.0), (rate, excess))
            if self._high and self._high[0] <= rate:
                self._high = None
        else:
            self._high = min(self._high or (math.inf, 0.0), (rate, excess))
            if self._low and self._low[0] >= rate:
                self._low = None
        return True

    def _interpolated_rate(self, inside: float) -> float:
        """Return the rate at which the excess would be 0, at least the part `inside` away from both ends."""
        assert self._low and self._high  # noqa: S101 - asked for when there are both
        (low, below), (high, above) = self._low, self._high
        part = 0.5 if math.isinf(above) or math.isinf(below) else -below / (above - below)
        return low * math.pow(high / low, min(1 - inside, max(inside, part)))


def _excess(probe: ProbeRecord, window: Window, limits: Mapping[str, float], full: FullLength) -> float:
    """Return ln(latency that decides / limit) of the limit that binds; infinite where too much was not answered."""
    judged, worst = window.judged, -math.inf
    if not probe.queries or probe.growing:
        return math.inf
    for name, limit in limits.items():
        values = window.values(name)
        seen = values[judged & np.isfinite(values)]
        if len(seen):
            worst = max(worst, math.log(max(1e-9, largest_but(seen, window.rank(full))) / (limit / 1000)))
    if worst <= 0 and probe.verdict is Verdict.FAILS:  # by queries that are not answered yet
        return math.inf
    return worst


#: Starts a server whose files go to a folder, with further options for `vllm serve`; returns the path of its record.
Start = Callable[[Path, str], str]
#: The errors that drop a candidate: its server does not start, ends, or cannot be measured, as with more sequences than
#: the machine allows open files. Any other error ends the search.
_DROPPED = (
    ServerDied,
    ServerNotReady,
    ServerStuck,
    ServerUnsuitable,
    ModelError,
    LimitTooLow,
    RunFailed,
    InvalidResult,
    UsageError,
)
#: The part of the time after which tokens are counted, and how often the server's counter is read at least.
_WARM, _LEAST_LOOKS = 1 / 3, 3
#: Samples of the first run, in datasets, and of each further one by the rate known: it is ended before they are spent.
_FIRST_PASSES, _MORE = 16, 2.0


class ServerBench:
    """Starts servers in folders below `folder`, and measures them in `runs`: one for each scenario.

    `start` starts a server in a folder with options beside the `extra` ones, and returns its record. `at_once` are
    the inputs of a run that gives a server's rate, from which a paced scenario starts.
    """

    def __init__(self, folder: Path, start: Start, extra: str, runs: Sequence[RunInputs], at_once: RunInputs) -> None:
        self._folder = folder
        self._start = start
        self._extra = extra
        self._runs = runs
        self._at_once = at_once
        self._record: ServerRecord | None = None
        self._server_path = ""
        #: The answers/s of each scenario whose samples come at once: of the last candidate and of this one.
        self._rates: dict[str, float] = {}
        self._now: dict[str, float] = {}
        self._known: list[Evaluation] = []
        self.serving: int | None = None

    def left_over(self, number: int, round_: int) -> Evaluation | None:
        """Return the evaluation that an earlier command made."""
        path = self._place(number, round_) / EVALUATION_FILE
        if not path.exists():
            return None
        self._known.append(made := read_record(path, Evaluation))
        return made

    def measure(self, number: int, candidate: Candidate, round_: int, seconds: float) -> Evaluation:
        """Measure a candidate, and leave the evaluation in its folder. Raises the errors that no candidate causes."""
        place = self._place(number, round_)
        with begun_folder(place):
            made = self._measure(place, number, candidate, round_, seconds)
        self._known.append(made)
        return made

    def _measure(self, place: Path, number: int, candidate: Candidate, round_: int, seconds: float) -> Evaluation:
        begin, start_s, scores, failure = time.monotonic(), 0.0, list[Score](), ""
        say(f"server settings: {candidate_words(candidate)}, {seconds:.0f} s a scenario")
        try:
            self._now = {}
            start_s = self._serve(number, candidate)
            scores = [self._score(run, (number, round_), place, seconds) for run in self._runs]
        except _DROPPED as error:
            failure = "; ".join(filter(None, (error.what, error.cause)))
            warn(f"server settings: {candidate_words(candidate)} is dropped: {failure}")
            self.close()
        made = Evaluation(
            number=number,
            round=round_,
            options=dict(candidate),
            seconds=round(seconds, 3),
            took_s=round(time.monotonic() - begin, 3),
            start_s=round(start_s, 3),
            scenarios=[] if failure else scores,
            score=None if failure else geometric_mean(scores),
            failure=failure,
            folder=place.relative_to(self._folder).as_posix(),
        )
        write_record(place / EVALUATION_FILE, made)
        return made

    def close(self) -> None:
        """End the server that runs."""
        if self._record is not None:
            stop(self._record)
        self._record, self.serving = None, None

    def _place(self, number: int, round_: int) -> Path:
        return self._folder / f"candidate-{number:03d}" / (f"round-{round_ + 1}" if round_ >= 0 else "trial")

    def _serve(self, number: int, candidate: Candidate) -> float:
        """Have the candidate's server run; return what its start took."""
        if self.serving == number:
            return 0.0
        self.close()
        begin = time.monotonic()
        extra = " ".join(filter(None, (self._extra, *words_of(candidate))))
        self._server_path = self._start(self._folder / f"candidate-{number:03d}" / "server", extra)
        self._record, self.serving = read_record(Path(self._server_path), ServerRecord), number
        return time.monotonic() - begin

    # --- one scenario ------------------------------------------------------------------------------------------------

    def _score(self, inputs: RunInputs, asked: tuple[int, int], place: Path, seconds: float) -> Score:
        inputs = replace(inputs, server_record=self._server_path, user_conf="", target_qps=self._rate(inputs))
        terms = settings_of(inputs).terms
        folder = place / inputs.scenario
        if terms.paced:
            return self._score_of_paced_run(inputs, asked, folder, seconds)
        tokens, answers, interval = self._rate_of(inputs, folder, seconds)
        if terms.one_by_one:
            return Score(scenario=inputs.scenario, value=answers, unit="answers/s")
        low, high = interval or (None, None)
        return Score(scenario=inputs.scenario, value=tokens, unit="tokens/s", low=low, high=high)

    def _score_of_paced_run(self, inputs: RunInputs, asked: tuple[int, int], folder: Path, seconds: float) -> Score:
        """Return the highest rate that keeps the limits, as far as the probes tell."""
        settings = settings_of(inputs)
        limits = require_searchable(settings.terms)
        start, begin = first_rate(self._known, asked[0], inputs.scenario), time.monotonic()
        if start is None:
            start = self._capacity(folder.with_name("rate"), seconds)
            if asked[1] == TRIAL:
                return Score(scenario=inputs.scenario, value=start, unit="queries/s")
            seconds = max(seconds / 2, seconds - (time.monotonic() - begin))
        prober = LoadGenProber(
            settings,
            writable_folder(folder),
            lambda rate: full_length_settings(inputs, rate),
            pythonpath=inputs.pythonpath,
        )
        return bracket(prober, inputs.scenario, start, limits, seconds)

    def _capacity(self, folder: Path, seconds: float) -> float:
        """Return the answers/s of a server that has always enough to do: as just measured, or measured now."""
        at_once = self._at_once
        if at_once.scenario not in self._now:
            at_once = replace(at_once, server_record=self._server_path, user_conf="", target_qps=self._rate(at_once))
            self._rate_of(at_once, folder, seconds)
        return self._now[at_once.scenario]

    def _rate_of(
        self, inputs: RunInputs, folder: Path, seconds: float
    ) -> tuple[float, float, tuple[float, float] | None]:
        """Return the tokens/s and the answers/s of a run that issues its samples as fast as they are answered.

        The third is the interval of the tokens/s, where the run was ended when its time was over.
        """
        settings = _of_length(settings_of(inputs), inputs, seconds, known=inputs.scenario in self._rates)
        answered, elapsed = 0, 0.0

        def take(news: Latencies) -> bool:
            nonlocal answered, elapsed
            answered, elapsed = answered + len(news.answers), news.elapsed_s
            return elapsed >= seconds

        _, made = run_or_part(settings, folder, take, inputs.pythonpath)
        if made is not None:
            answered, elapsed = made.client.completed, made.duration_s
        if not answered:
            raise InvalidResult(
                f"no answer within {elapsed:.0f} s", cause="the measurement is too short for this server"
            )
        self._rates[inputs.scenario] = self._now[inputs.scenario] = answered / elapsed
        tokens = [made.client.completion_tokens / made.duration_s] if made is not None else _tokens_per_s(folder, 1)
        if not any(tokens):
            raise InvalidResult(
                f"the server's counter of tokens was read too rarely in {elapsed:.0f} s",
                cause="the measurement is too short",
            )
        parts = [] if made is not None else _tokens_per_s(folder, PARTS)
        return tokens[0], answered / elapsed, interval_of_parts(parts)

    def _rate(self, inputs: RunInputs) -> float:
        return self._rates.get(inputs.scenario, 1.0)


def first_rate(known: Sequence[Evaluation], number: int, scenario: str) -> float | None:
    """Return the rate that the probes of a candidate begin with in a paced scenario; None where nothing is known.

    It is what the candidate came to before, else the highest rate of any: most candidates fail there at once, and what
    passes is worth more probes.
    """
    measured = [evaluation for evaluation in known if evaluation.round != TRIAL and evaluation.scenarios] or known
    of = [
        (evaluation.number, score)
        for evaluation in measured
        for score in evaluation.scenarios
        if score.scenario == scenario
    ]
    own = [score.value for other, score in of if other == number]
    return own[-1] if own else max((score.value for _, score in of), default=None)


def _of_length(settings: RunSettings, inputs: RunInputs, seconds: float, *, known: bool) -> RunSettings:
    """Return the settings of a run that would last longer than `seconds`, after which it is ended."""
    rate, passes = inputs.target_qps or 1.0, _FIRST_PASSES
    if known:
        passes = max(1, -(-round(_MORE * seconds * rate) // settings.samples))
    return settings_of_part(
        settings, rate, 1, least_queries=passes * settings.samples, source="a search over server settings"
    )


def _tokens_per_s(folder: Path, parts: int) -> list[float]:
    """Return the tokens/s of the server in each of so many equal parts of the time after which its batch is full.

    Empty where the server's counter was read too rarely for that.
    """
    samples = _full(folder)
    if len(samples) <= parts:
        return []
    edges = [samples[round(part * (len(samples) - 1) / parts)] for part in range(parts + 1)]
    return [
        (last.generation_tokens - first.generation_tokens) / (last.at_s - first.at_s)
        for first, last in itertools.pairwise(edges)
    ]


def _full(folder: Path) -> list[MetricsSample]:
    """Return the samples of the server while its batch was full; none where it was sampled too rarely."""
    samples = [sample for sample in read_samples(folder / METRICS_FILE) if sample.running]
    if len(samples) < _LEAST_LOOKS:
        return []
    warm = samples[0].at_s + _WARM * (samples[-1].at_s - samples[0].at_s)
    counted = [sample for sample in samples if sample.at_s >= warm]
    return counted if len(counted) > 1 else [samples[0], samples[-1]]
