"""The place of a result among published ones: of the same model, benchmark, scenario and division, round by round."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from cm4vllm.common.number_texts import number, rate
from cm4vllm.common.records import Record
from cm4vllm.results.model import Result, Submission
from cm4vllm.results.result_index import Index, IndexRow, row_of

Of = Callable[[IndexRow], float | None]

#: The divisors of a rate, and the words for each.
_BASES: dict[str, Of] = {"accelerator": lambda row: row.per_accelerator, "W": lambda row: row.per_watt}
_DIVISORS: dict[str, Callable[[IndexRow], str]] = {
    "accelerator": lambda row: f"{row.accelerators} accelerator{'' if row.accelerators == 1 else 's'}",
    "W": lambda row: f"{number(row.power_w or 0.0)} W" + (f" ({row.power_source})" if row.power_source else ""),
}


class Rank(NamedTuple):
    """A place among `of` results, this one included; the median of the others, and the source of the figures.

    `shared` counts the others that have the same rate, and so the same place.
    """

    place: int
    of: int
    median: float
    source: str
    shared: int = 0

    @property
    def words(self) -> str:
        return f"place {self.place} of {self.of}"

    @property
    def ties(self) -> str:
        """The number of other results that share the place, as words to follow it; empty where there is no tie."""
        return f" (shared with {self.shared} other{'' if self.shared == 1 else 's'})" if self.shared else ""


class Standing(Record, frozen=True, kw_only=True):
    """The place of a rate per `per` (accelerator, W) in a round: among all, and among those on the same accelerator.

    `best` is the published result with the highest rate; `flagged` counts those in which the checks find an error.
    `source` and `best_source` are file and field of the rate, and by what it was divided, of watts with theirs.
    """

    round: str
    per: str
    unit: str
    value: float
    source: str
    among_all: Rank
    among_like: Rank | None
    best: float
    best_of: str
    best_source: str
    flagged: int


class LeftOut(Record, frozen=True, kw_only=True):
    """The number of published results of the same benchmark and scenario that were not compared, and the reasons."""

    round: str
    why: str
    count: int


class Place(Record, frozen=True, kw_only=True):
    """A result as a row of the index, and its places; `why_none` says why it has none."""

    own: IndexRow
    standings: tuple[Standing, ...]
    left_out: tuple[LeftOut, ...]
    why_none: str

    @property
    def words(self) -> str:
        """The places in one line."""
        title = f"{self.own.model} {self.own.scenario}"
        if self.why_none:
            return f"{title}: no place among published results, because {self.why_none}."
        ranks = "; ".join(self._standing(standing) for standing in self.standings)
        return f"{title}: {ranks}. Systems differ in more than their accelerators."

    def _standing(self, standing: Standing) -> str:
        value = f"{standing.round}: {rate(standing.value)} {standing.unit} per {standing.per}"
        words = f"{value} is {standing.among_all.words} with any accelerator{standing.among_all.ties}"
        if standing.among_like is None:
            return words
        like = standing.among_like
        same = f"{like.words} with the {self.own.accelerator}{like.ties}, whose median is {rate(like.median)}"
        return f"{words}, and {same}"


def places_of(submission: Submission, index: Index) -> list[Place]:
    """Return the places of all results of a submission."""
    return [place(submission, result, index) for result in submission.results]


def place(submission: Submission, result: Result, index: Index) -> Place:
    """Return the places of one result; a rehearsal, and one that is not valid, has none."""
    own = row_of(submission, result)
    candidates = [row for row in index.rows if (row.benchmark, row.scenario) == (own.benchmark, own.scenario)]
    refused = {id(row): why for row in candidates if (why := _not_compared(own, row))}
    same = [row for row in candidates if id(row) not in refused]
    left = Counter((_round(row), refused[id(row)]) for row in candidates if id(row) in refused)
    why = _none(own, same, rehearsal=any(run.notice for run in result.runs))
    return Place(
        own=own,
        standings=() if why else tuple(_standings(own, same)),
        left_out=tuple(LeftOut(round=round_, why=why, count=count) for (round_, why), count in sorted(left.items())),
        why_none=why,
    )


def _not_compared(own: IndexRow, row: IndexRow) -> str:
    """Return the reason why a published result is not comparable; empty where it is."""
    if row.identity == own.identity and row.value == own.value:
        return "it is this result"
    if not row.valid:
        return "not valid"
    if row.division != own.division:
        return f"{row.division} division"
    if row.model != own.model:
        return f"another model, {row.model}"
    if row.unit != own.unit:
        return f"its result is in {row.unit or 'no unit'}, not in {own.unit or 'none'}"
    return "" if any(of(row) is not None for of in _BASES.values()) else "its system states no accelerator"


def _none(own: IndexRow, same: Sequence[IndexRow], *, rehearsal: bool) -> str:
    if rehearsal:
        return "these runs are no result"
    if not own.valid:
        return "the result is not valid"
    if all(of(own) is None for of in _BASES.values()):
        return "the system has no accelerator, or the result is no rate"
    if any(of(own) is not None and of(row) is not None for of in _BASES.values() for row in same):
        return ""
    return f"there is none of {own.model} in {own.benchmark} {own.scenario}, {own.division} division"


def _standings(own: IndexRow, same: Sequence[IndexRow]) -> Iterator[Standing]:
    for round_ in sorted({_round(row) for row in same}):
        for per, of in _BASES.items():
            mine = of(own)
            rows = [(row, rate) for row in same if _round(row) == round_ and (rate := of(row)) is not None]
            if mine is None or not rows:
                continue
            best, most = max(rows, key=lambda row: row[1])
            like = [row for row in rows if own.accelerator and row[0].accelerator == own.accelerator]
            yield Standing(
                round=round_,
                per=per,
                unit=own.unit,
                value=mine,
                source=_source(own, per),
                among_all=_rank(mine, rows, per),
                among_like=_rank(mine, like, per) if like else None,
                best=most,
                best_of=f"{best.submitter}, {best.system}",
                best_source=_source(best, per),
                flagged=sum(row.errors > 0 for row, _ in rows),
            )


def _rank(mine: float, others: Sequence[tuple[IndexRow, float]], per: str) -> Rank:
    ordered = sorted(others, key=lambda row: row[1])
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    source = " and ".join(_source(row, per) for row, _ in middle)
    return Rank(
        1 + sum(rate > mine for _, rate in others),
        len(others) + 1,
        sum(rate for _, rate in middle) / len(middle),
        f"mean of {source}" if len(middle) > 1 else source,
        sum(rate == mine for _, rate in others),
    )


def _source(row: IndexRow, per: str) -> str:
    return f"{row.file}: {row.field}, divided by {_DIVISORS[per](row)}"


def _round(row: IndexRow) -> str:
    return row.round or "round unknown"
