"""Upper bounds for how much better than the chosen server setting another one may be, from a search's records.

The true values are not known. Two things are recorded of a measurement: its own interval (the bracket of a rate that
was searched for, or the parts of a measurement whose samples came at once), and how much measurements of one candidate
differ from one round to the next, beside what those of all do. A bound is the wider of what the two leave room for.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from cm4vllm.campaign.search.search_space import words_of
from cm4vllm.common.student import student_t
from cm4vllm.common.units import four_digits
from cm4vllm.records.searches.settings_search import TRIAL, Evaluation, Rival, Score

#: Parts of a measurement whose samples come at once.
PARTS = 5
#: Candidates whose changes between two rounds say something together, at least: fewer would allow any ratio.
_LEAST = 3

Round = Mapping[int, Evaluation]


def interval_of_parts(rates: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of the rates of PARTS equal parts; None where there are not as many."""
    if len(rates) != PARTS:
        return None
    mean, half = statistics.fmean(rates), student_t(0.975, PARTS - 1) * statistics.stdev(rates) / math.sqrt(PARTS)
    return max(0.0, mean - half), mean + half


def rivals(evaluations: Sequence[Evaluation], chosen: int) -> list[Rival]:
    """Return the rivals: each other candidate that was measured, by its last round beside the chosen one.

    Those for which the records have no bound come first, then the others by their bound.
    """
    rounds: dict[int, dict[int, Evaluation]] = {}
    for evaluation in evaluations:
        if evaluation.score is not None and evaluation.round != TRIAL:
            rounds.setdefault(evaluation.round, {})[evaluation.number] = evaluation
    last: dict[int, int] = {}
    for round_, done in sorted(rounds.items()):
        last.update((number, round_) for number in done if chosen in done and number != chosen)
    made = [_rival(rounds, round_, number, chosen) for number, round_ in last.items()]
    return sorted(made, key=lambda rival: -math.inf if rival.most is None else -rival.most)


def evidence_words(rivals: Sequence[Rival], untried: int) -> str:
    """Return in sentences how much better than the chosen setting another may be by the records of the search."""
    among = f", {untried} of the candidates among them" if untried else ""
    covered = f"Settings that were not tried are not covered{among}."
    if not rivals:
        unknown = "No other setting was measured beside the chosen one: how far it is from the best is not known."
        return f"{unknown} {covered}"
    bounded = [rival for rival in rivals if rival.most is not None]
    unbounded = [rival for rival in rivals if rival.most is None]
    said = []
    if bounded:
        nearest = bounded[0]
        name, why = _name(nearest), nearest.why
        said.append(
            f"Another tried setting may be {nearest.standing} than the chosen one by the records, {name}: {why}."
            if (nearest.most or 0.0) > 1
            else f"By the records no other tried setting is better than the chosen one. The nearest, {name}, is "
            f"{nearest.standing}: {why}."
        )
    if unbounded:
        said.append(
            f"For {len(unbounded)} of {len(rivals)} tried settings the records have no bound, as for "
            f"{_name(unbounded[0])}: {unbounded[0].why}."
        )
    return " ".join([*said, covered])


def _name(rival: Rival) -> str:
    return " ".join(words_of(rival.options)) or "the server as it is"


def _rival(rounds: Mapping[int, Round], round_: int, number: int, chosen: int) -> Rival:
    evaluation, best = rounds[round_][number], rounds[round_][chosen]
    ours = {score.scenario: score for score in best.scenarios}
    bounds = [
        _bound(score, ours[score.scenario], _spread(rounds, round_, score.scenario))
        for score in evaluation.scenarios
        if score.scenario in ours
    ]
    known = [ratio for ratio, _ in bounds if ratio is not None]
    most = statistics.geometric_mean(known) if known and len(known) == len(bounds) else None
    return Rival(
        number=number,
        round=round_,
        options=evaluation.options,
        ratio=round((evaluation.score or 0.0) / (best.score or 1.0), 4),
        most=None if most is None else round(most, 4),
        standing=_standing(most),
        why="; ".join([words for ratio, words in bounds if (ratio is None) is (most is None)]),
    )


def _standing(most: float | None) -> str:
    if most is None:
        return "no bound"
    return f"up to {100 * (most - 1):.1f} % better" if most > 1 else f"at least {100 * (1 - most):.1f} % below"


def _bound(score: Score, chosen: Score, spread: float | None) -> tuple[float | None, str]:
    """Return the ratio to the chosen candidate up to which the records leave room in a scenario, and by what.

    The ratio is None where they bound nothing.
    """
    if score.high is None and score.low is not None:
        return (None, f"it failed at no {score.scenario} rate that was probed")
    if chosen.low is None and chosen.high is not None:
        return (None, f"beside it the chosen one passed at no {score.scenario} rate that was probed")
    by_rounds = 0.0 if spread is None else score.value / chosen.value * math.exp(spread)
    own = 0.0 if score.high is None or not chosen.low else score.high / chosen.low
    if not own and not by_rounds:
        return (None, f"its {score.scenario} value has no interval, and too few others were measured twice")
    if score.high is None or not chosen.low or own < by_rounds:
        return (by_rounds, f"{score.scenario} values of one setting differ that much from round to round")
    return (
        own,
        f"its {score.scenario} interval reaches {four_digits(score.high)} {score.unit}, and that of the chosen one "
        f"begins at {four_digits(chosen.low)}",
    )


def _spread(rounds: Mapping[int, Round], round_: int, scenario: str) -> float | None:
    """Return how far the logarithm of the ratio of two measurements of a round may be off, with 95 % to one side.

    It comes from the change of each candidate to the next round, or from the one before the last, beside the mean
    change of all: measurements of both rounds add to that, so it is at least the spread of the shorter one.
    """
    first = round_ if round_ + 1 in rounds else round_ - 1
    changes = list(_changes(rounds.get(first, {}), rounds.get(first + 1, {}), scenario))
    if len(changes) < _LEAST:
        return None
    return student_t(0.95, len(changes) - 1) * math.sqrt(2) * statistics.stdev(changes)


def _changes(before: Round, after: Round, scenario: str) -> Iterator[float]:
    for number in before.keys() & after.keys():
        values = [
            score.value
            for done in (before, after)
            for score in done[number].scenarios
            if score.scenario == scenario and not score.is_at_range_limit
        ]
        if len(values) == 2:
            yield math.log(values[1] / values[0])
