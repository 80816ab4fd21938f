"""settings.json: the server settings that a search tried, and those that it chose."""

import math
import statistics

from cm4vllm.common.records import Record

#: The file with the record of a search, and the file with the record of one evaluation.
SETTINGS_FILE, EVALUATION_FILE = "settings.json", "evaluation.json"
#: The step of a job, whose evaluations are entries of the ledger, too.
STEP = "server settings search"
#: The number of the round that only says what a start takes, and where probes begin.
TRIAL = -1


class Score(Record, frozen=True, kw_only=True):
    """A server's performance in one scenario, in `unit`: more is better.

    Of a rate that was searched for, `low` is the highest probed rate that passed and `high` the lowest one above it
    that failed, each None where there was none. Of samples that come at once they are the 95 % interval of `value` by
    the parts of the measurement, both None where it was too short for that.
    """

    scenario: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None

    @property
    def is_at_range_limit(self) -> bool:
        """Return True if `value` is the one end of a bracket whose other end was not found."""
        return (self.low is None) is not (self.high is None)


class Evaluation(Record, frozen=True, kw_only=True):
    """A measurement of one candidate, the values of whose options are `options`: none is the server as it is.

    `round` counts from 0; -1 is the trial of the first start. `seconds` is how long each scenario was measured,
    `took_s` how long all of it took, of which `start_s` the start of the server; 0 where it ran already. `score` is
    the geometric mean of `scenarios`, None for a candidate that could not be measured: `failure` says why.
    """

    number: int
    round: int
    options: dict[str, int | float]
    seconds: float
    took_s: float
    start_s: float
    scenarios: list[Score] = []
    score: float | None = None
    failure: str = ""
    folder: str = ""

    @property
    def kept_limits(self) -> bool:
        """Return True if it passed at some rate in each scenario with a searched rate; else `value` is only a bound."""
        return all(scenario.low is not None or scenario.high is None for scenario in self.scenarios)

    @property
    def overhead_s(self) -> float:
        """Seconds in which nothing was measured."""
        return max(0.0, self.took_s - self.seconds * len(self.scenarios))


class Rival(Record, frozen=True, kw_only=True):
    """Another candidate that was tried, beside the chosen one, by measurements of the same `round`.

    `ratio` is its score over that of the chosen one. `most` is the ratio up to which the records leave room, None where
    they have no bound; `standing` is the same in words, and `why` says what it comes from.
    """

    number: int
    round: int
    options: dict[str, int | float]
    ratio: float
    most: float | None
    standing: str
    why: str


class SettingsRecord(Record, frozen=True, kw_only=True):
    """A search over server settings that ended.

    `search` is what --search said, `candidates` their number as the plan counts them, `untried` those for
    which the time was not enough. `chosen` are the options of the best one, empty for the server as it is, `words` the
    same for `vllm serve`, and `extra_args` with what the user gave. `gain` is its score over that of the server as it
    is, measured for equally long; None where that one could not be measured. `starts` counts those of the server.
    `rivals` are the other candidates that were tried, `evidence` says in sentences how much better one of them may be.
    `simulated` is the profile of the servers of a rehearsal (--rehearse).
    """

    search: str
    minutes: float
    scenarios: list[str]
    candidates: int
    untried: int
    chosen: dict[str, int | float]
    words: str
    extra_args: str
    gain: float | None
    stopped: str
    cost_s: float
    starts: int
    start_s: float
    evaluations: list[Evaluation]
    rivals: list[Rival] = []
    evidence: str = ""
    simulated: str = ""

    @property
    def summary(self) -> str:
        """The result in one line."""
        gained = f", {self.gain:.3f} times the server as it is" if self.gain is not None and self.chosen else ""
        untried = f", {self.untried} not tried" if self.untried else ""
        marked = f"SIMULATED, with the times of {self.simulated}: " if self.simulated else ""
        return (
            f"{marked}{self.words or 'the server as it is'} is best{gained}; {self.candidates} candidates{untried}, "
            f"{self.starts} starts, {self.cost_s / 60:.1f} of {self.minutes:g} minutes; {self.stopped}"
        )


def geometric_mean(scores: list[Score]) -> float:
    """Return the mean of scores of different scenarios, whose units differ: a ratio counts alike in each."""
    return math.exp(statistics.fmean(math.log(score.value) for score in scores))
