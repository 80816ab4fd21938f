"""The search over server settings: which candidates are measured, for how long, and which go on. It knows no server.

Successive halving: all candidates are measured shortly, the best third of them three times as long, and so on. Short
measurements sort out what is far from the best, and only what is near to it is measured for long. The server as it is
without the search is measured in each round: what is gained is said of equal measurements.

What a start of the server takes is measured, and the time of the measurements is what the budget leaves. Nothing is
begun that would not end within it.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cm4vllm.campaign.search.search_space import Candidate
from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.records.searches.settings_search import TRIAL, Evaluation

#: Of so many candidates one goes on, measured so many times as long.
KEPT, LONGER = 3, 3.0
#: The round of so many candidates is the last one.
LAST = 4
#: The part of the budget that is planned with: a start or a measurement may take longer than those before.
_PLANNED = 0.92


class Bench(Protocol):
    """Measures candidates; the evaluation of one that cannot be measured says why in `failure`."""

    def measure(self, number: int, candidate: Candidate, round_: int, seconds: float) -> Evaluation: ...

    def left_over(self, number: int, round_: int) -> Evaluation | None:
        """Return the evaluation that an earlier command made."""

    @property
    def serving(self) -> int | None:
        """The number of the candidate that the server runs with now."""


@dataclass(frozen=True)
class HalvingPlan:
    """The budget in s, and the least and the longest time of one measurement in its first round and in its last."""

    budget_s: float
    least_s: float = 10.0
    most_s: float = 900.0


@dataclass(frozen=True)
class Chosen:
    """The result of a search: the number of the best candidate, and its evaluation in the last round that compares."""

    best: Evaluation
    as_it_is: Evaluation | None
    evaluations: tuple[Evaluation, ...]
    untried: int
    stopped: str


def halve(
    candidates: Sequence[Candidate],
    bench: Bench,
    plan: HalvingPlan,
    seen: Callable[[Evaluation], None] = lambda evaluation: None,
) -> Chosen:
    """Search; `seen` is called with each evaluation once it is made or read. Raises what `bench` raises, and
    ServerUnsuitable where no candidate can be measured.
    """
    return _Halving(candidates, bench, plan, seen).run()


@dataclass
class _Halving:
    candidates: Sequence[Candidate]
    bench: Bench
    plan: HalvingPlan
    seen: Callable[[Evaluation], None]
    made: list[Evaluation] = field(default_factory=list)
    by_round: dict[int, dict[int, Evaluation]] = field(default_factory=dict)

    def run(self) -> Chosen:
        # The first start says what a start takes: as short a measurement as can be, which is compared with none.
        first = self._take(0, TRIAL, self.plan.least_s)
        numbers = self._first_field()
        if len(numbers) == 1 < len(self.candidates):
            return self._choose("its time was not enough for another candidate")
        if first is None or first.score is None:
            numbers = [number for number in numbers if number]
        for round_, _ in enumerate(_rounds(len(self.candidates) + 1)):
            if not self._round(numbers, round_, self._seconds(len(numbers))):
                return self._choose("its time was used up")
            going = self._going(numbers, round_)
            if len(numbers) <= LAST or len(going) < 2:
                break
            numbers = going
        return self._choose("all rounds were made")

    # --- what is measured --------------------------------------------------------------------------------------------

    def _first_field(self) -> list[int]:
        """Return the candidates for which the time is enough, at the least time of a measurement."""
        count = len(self.candidates)
        while count > 1 and self._time_needed(count, self.plan.least_s) > self._time_left:
            count -= 1
        return list(range(count))

    def _round(self, numbers: Sequence[int], round_: int, seconds: float) -> bool:
        """Measure the candidates of a round; say whether the time was enough."""
        done = self.by_round.setdefault(round_, {})
        # First the candidate that is served now, which needs no start; then the best of the round before.
        for number in sorted(numbers, key=lambda number: number != self.bench.serving):
            if number not in done and self._take(number, round_, seconds) is None:
                return False
        return True

    def _take(self, number: int, round_: int, seconds: float) -> Evaluation | None:
        """Return the evaluation of a candidate, made now or by an earlier command; None where no time is left."""
        known = self.bench.left_over(number, round_)
        if known is None:
            longest = max((evaluation.overhead_s for evaluation in self.made), default=0.0)
            if self.made and self._spent + longest + seconds * self._scenarios > self.plan.budget_s:
                return None
            known = self.bench.measure(number, self.candidates[number], round_, seconds)
        self.made.append(known)
        self.by_round.setdefault(round_, {})[number] = known
        self.seen(known)
        return known

    def _going(self, numbers: Sequence[int], round_: int) -> list[int]:
        """Return the candidates of the next round: the best third, and the server as it is."""
        done = self.by_round.get(round_, {})
        scores = {number: evaluation.score for number, evaluation in done.items() if evaluation.score is not None}
        best = sorted((number for number in numbers if number in scores), key=lambda number: -scores[number])
        kept = best[: max(1, math.ceil(len(numbers) / KEPT))]
        return [*kept, *([0] if 0 in scores and 0 not in kept else [])]

    # --- time --------------------------------------------------------------------------------------------------------

    @property
    def _scenarios(self) -> int:
        return max((len(evaluation.scenarios) for evaluation in self.made), default=1) or 1

    @property
    def _spent(self) -> float:
        return sum(evaluation.took_s for evaluation in self.made)

    @property
    def _time_left(self) -> float:
        return _PLANNED * self.plan.budget_s - self._spent

    def _time_needed(self, count: int, seconds: float) -> float:
        """Return the time of a round of `count` candidates, and of all that follow it."""
        rounds = _rounds(count)
        overhead = statistics.fmean(evaluation.overhead_s for evaluation in self.made)  # mostly starts of the server
        measured = sum(size * LONGER**later for later, size in enumerate(rounds))
        return sum(rounds) * overhead + measured * seconds * self._scenarios

    def _seconds(self, count: int) -> float:
        """Return how long a measurement of a round may be so that those of all rounds have room."""
        if not count:
            return self.plan.least_s
        nothing, one_share = self._time_needed(count, 0.0), self._time_needed(count, 1.0)
        longest = self.plan.most_s / LONGER ** (len(_rounds(count)) - 1)
        return max(self.plan.least_s, min(longest, (self._time_left - nothing) / (one_share - nothing)))

    # --- the result --------------------------------------------------------------------------------------------------

    def _choose(self, stopped: str) -> Chosen:
        """Choose among the candidates of the last round in which more than one was measured.

        One that was dropped in a longer round, or kept its limits at no rate there, is not chosen by a shorter one.
        """
        ordered = sorted(self.by_round.items())
        last = {number: evaluation for _, done in ordered for number, evaluation in done.items()}
        rounds = [
            [evaluation for evaluation in done.values() if _is_good(evaluation) and _is_good(last[evaluation.number])]
            for round_, done in ordered
            if round_ != TRIAL or len(ordered) == 1
        ]
        whole = [done for done in rounds if len(done) > 1] or [done for done in rounds if done]
        if not whole:
            raise self._none()
        compared = whole[-1]
        best = max(compared, key=lambda evaluation: evaluation.score or 0.0)
        tried = {evaluation.number for evaluation in self.made}
        return Chosen(
            best=best,
            as_it_is=next((evaluation for evaluation in compared if evaluation.number == 0), None),
            evaluations=tuple(self.made),
            untried=len(self.candidates) - len(tried),
            stopped=stopped,
        )

    def _none(self) -> ServerUnsuitable:
        said = dict.fromkeys(evaluation.failure for evaluation in self.made if evaluation.failure)
        bounds = any(not evaluation.kept_limits for evaluation in self.made)
        return ServerUnsuitable(
            "no server settings of --search can be measured",
            cause="\n".join([*said, *(["no rate was found at which a candidate keeps the limits"] if bounds else [])])
            or "the time was not enough for one measurement",
            remedy="leave --search out and see whether the server starts; then give other ranges, or more minutes",
        )


def _is_good(evaluation: Evaluation) -> bool:
    return evaluation.score is not None and evaluation.kept_limits


def _rounds(count: int) -> list[int]:
    """Return the number of candidates of each round, `count` in the first. The unchanged server is in all rounds."""
    sizes = [count]
    while sizes[-1] > LAST:
        sizes.append(min(sizes[-1] - 1, math.ceil(sizes[-1] / KEPT) + 1))
    return sizes
