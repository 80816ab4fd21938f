"""Longest common subsequences, bit-parallel, with the very path that rouge-score's backtrack takes.

The table t[i][j], the length for the first i words of a reference line and the first j of a candidate's, is kept as
one integer a column: bit i-1 of column j is 0 where t[i][j] = t[i-1][j] + 1 (Hyyrö, Bit-parallel LCS-length computation
revisited, 2004). That is all the backtrack asks for: at a match it takes the word and goes diagonally; else it goes
left where t[i][j-1] > t[i-1][j], which without a match is where that bit is 0, and up otherwise (rouge_scorer.py,
_backtrack_norec). Within a column it therefore goes up to the first row that matches or has a 0 bit: the highest such
bit at or below its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cm4vllm.accuracy.rouge_words import IntArray

Masks = npt.NDArray[np.uint64]

#: Lines of up to so many words go through `unions`, one machine word each.
WORD_BITS = 64

_ALL = np.uint64(2**64 - 1)


def union(reference: Sequence[int], candidates: Iterable[Sequence[int]]) -> int:
    """Return the positions in `reference`, as bits, that are on the path of any candidate."""
    masks, full = _masks(reference)
    taken = 0
    for candidate in candidates:
        matches = [masks.get(word, 0) for word in candidate]
        columns = []
        column = full
        for mask in matches:
            hit = column & mask
            column = ((column + hit) | (column - hit)) & full
            columns.append(column)
        below = full
        for mask, column in zip(reversed(matches), reversed(columns), strict=True):
            row = ((mask | ~column) & below).bit_length()
            if not row:
                break
            top = 1 << (row - 1)
            below = top - 1
            if mask & top:
                taken |= top
            else:
                below |= top
    return taken


def _masks(reference: Sequence[int]) -> tuple[dict[int, int], int]:
    """Return the positions of each word as bits, and all positions."""
    masks: dict[int, int] = {}
    bit = 1
    for word in reference:
        masks[word] = masks.get(word, 0) | bit
        bit <<= 1
    return masks, bit - 1


@dataclass(frozen=True)
class Lanes:
    """Pairs of lines to be compared all at once, the longest candidates first.

    A lane's reference line has `rows` words, at most WORD_BITS; its candidate has `columns` words, the first of which
    is number `start` in `places`. The mask of word w of the candidates is masks[places[w] + line], where `line` is the
    reference line's place among those of its text.
    """

    rows: IntArray
    columns: IntArray
    start: IntArray
    line: IntArray
    places: IntArray
    masks: Masks


def unions(lanes: Lanes) -> Masks:
    """Return the positions, as bits, that each lane's path takes in its reference line."""
    matches, stops = _columns(lanes)
    below = _ALL >> (WORD_BITS - lanes.rows).astype(np.uint64)
    taken = np.zeros_like(below)
    for mask, stop in zip(reversed(matches), reversed(stops), strict=True):
        active = slice(len(mask))
        stop &= below[active]
        for shift in (1, 2, 4, 8, 16, 32):  # every bit below the highest one, too
            stop |= stop >> np.uint64(shift)
        mask &= stop ^ (stop >> np.uint64(1))  # the highest bit alone, where it is a match
        taken[active] |= mask
        below[active] = stop ^ mask
    return taken


def _columns(lanes: Lanes) -> tuple[list[Masks], list[Masks]]:
    """Return, column by column, the matching rows and those at which the backtrack stops going up."""
    matches, stops = [], []
    column = np.full(len(lanes.rows), _ALL)
    steps = int(lanes.columns[0]) if len(lanes.columns) else 0
    active = np.searchsorted(-lanes.columns, -np.arange(steps))  # lanes that are longer than the step's number
    for step, count in enumerate(active.tolist()):
        mask = lanes.masks[lanes.places[lanes.start[:count] + step] + lanes.line[:count]]
        column = column[:count]
        hit = column & mask
        column = (column + hit) | (column - hit)
        matches.append(mask)
        stops.append(mask | ~column)
    return matches, stops
