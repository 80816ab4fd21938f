"""Candidates of server settings measured on real servers: each is started, and asked by short LoadGen runs.

The score in Offline is the rate in tokens/s at which the server itself generated after a third of the time, when its
batch is full. The score in a scenario whose queries come at their own times is the highest rate in queries/s whose
probes keep the limits: at one common rate, all queries or none of most candidates would keep them. The probes begin at
the rate at which the server answers samples that come at once, which the first start measures. The score in a scenario
whose queries follow each other is the rate in answers/s.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from cm4vllm.campaign.search.bracketing import bracket
from cm4vllm.campaign.search.possible_gain import PARTS, interval_of_parts
from cm4vllm.campaign.search.probing import (
    LoadGenProber,
    full_length_settings,
    require_searchable,
    run_or_part,
    settings_of_part,
)
from cm4vllm.campaign.search.search_space import Candidate, shown, words_of
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
from cm4vllm.records.searches.settings_search import EVALUATION_FILE, TRIAL, Evaluation, Score, geometric_mean
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.server import stop

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
            made = self._measured(place, number, candidate, round_, seconds)
        self._known.append(made)
        return made

    def _measured(self, place: Path, number: int, candidate: Candidate, round_: int, seconds: float) -> Evaluation:
        begin, start_s, scores, failure = time.monotonic(), 0.0, list[Score](), ""
        say(f"server settings: {shown(candidate)}, {seconds:.0f} s a scenario")
        try:
            self._now = {}
            start_s = self._serve(number, candidate)
            scores = [self._score(run, (number, round_), place, seconds) for run in self._runs]
        except _DROPPED as error:
            failure = "; ".join(filter(None, (error.what, error.cause)))
            warn(f"server settings: {shown(candidate)} is dropped: {failure}")
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
            return self._paced(inputs, asked, folder, seconds)
        tokens, answers, interval = self._rate_of(inputs, folder, seconds)
        if terms.one_by_one:
            return Score(scenario=inputs.scenario, value=answers, unit="answers/s")
        low, high = interval or (None, None)
        return Score(scenario=inputs.scenario, value=tokens, unit="tokens/s", low=low, high=high)

    def _paced(self, inputs: RunInputs, asked: tuple[int, int], folder: Path, seconds: float) -> Score:
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
