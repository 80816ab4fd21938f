"""ROUGE-1, -2, -L and -Lsum of many pairs at once: to the last bit what rouge-score computes with use_stemmer=True.

All words of all pairs are counted in one pass: a word's *entry* is its place among the distinct words of its pair, so
that equal entries mean the same word of the same pair. Hits are integers, and the divisions are rouge-score's own, in
its order (rouge_scorer.py and scoring.py of rouge-score 0.1.2), hence no difference is left to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import LCSseq

from cm4vllm.accuracy import lcs
from cm4vllm.accuracy.rouge_words import IntArray, Texts, Vocabulary

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")

FloatArray = npt.NDArray[np.float64]
#: By type, the F-measure of each pair, in [0, 1].
FMeasures = dict[str, FloatArray]


def rouge(predictions: Sequence[str], references: Sequence[str], vocabulary: Vocabulary) -> FMeasures:
    """Score each prediction against its reference; sentences are lines, as rouge-score has them."""
    pairs = _pair_words(vocabulary.read(predictions), vocabulary.read(references))
    words = pairs.common(pairs.our_entries, pairs.their_entries)
    hits = (words, _bigram_hits(pairs), _longest_common(pairs), _summary_hits(pairs))
    sizes = (pairs.ours.sizes, pairs.theirs.sizes)
    short = [np.maximum(size - 1, 0) for size in sizes]
    lengths = (sizes, short, sizes, sizes)
    return {type_: _fmeasure(hit, *size) for type_, hit, size in zip(TYPES, hits, lengths, strict=True)}


@dataclass(frozen=True)
class _Pairs:
    """Predictions (`ours`) and references (`theirs`), the entry of each of their words, the pair of each entry."""

    ours: Texts
    theirs: Texts
    our_entries: IntArray
    their_entries: IntArray
    pair_of: IntArray

    @property
    def count(self) -> int:
        """Return the number of pairs."""
        return len(self.ours.lines)

    def common(self, ours: IntArray, theirs: IntArray) -> IntArray:
        """Return by pair how many words two choices of entries have in common, each as often as in both."""
        size = len(self.pair_of)
        both = np.minimum(np.bincount(ours, minlength=size), np.bincount(theirs, minlength=size))
        return _sums(self.pair_of, both, self.count)


def _pair_words(ours: Texts, theirs: Texts) -> _Pairs:
    """Return both sides with a number for each distinct word of a pair."""
    words = np.concatenate((ours.words, theirs.words))
    pair = np.concatenate([np.repeat(np.arange(len(texts.lines)), texts.sizes) for texts in (ours, theirs)])
    stride = int(words.max(initial=0)) + 1
    distinct, entries = np.unique(pair * stride + words, return_inverse=True)
    return _Pairs(ours, theirs, entries[: len(ours.words)], entries[len(ours.words) :], distinct // stride)


def _bigram_hits(pairs: _Pairs) -> IntArray:
    """Return for each pair how many bigrams both sides share, each as often as in both."""
    size = len(pairs.pair_of)
    sides = []
    for entries in (pairs.our_entries, pairs.their_entries):
        left, right = entries[:-1], entries[1:]
        within = pairs.pair_of[left] == pairs.pair_of[right]
        sides.append(left[within] * size + right[within])
    # One sort brings equal bigrams of both sides together; the last bit says whose each is.
    marked = np.sort(np.concatenate((sides[0] * 2, sides[1] * 2 + 1)))
    if not len(marked):
        return np.zeros(pairs.count, np.int64)
    bigrams = marked >> 1
    begins = np.flatnonzero(np.concatenate(([True], bigrams[1:] != bigrams[:-1])))
    theirs = np.add.reduceat(marked & 1, begins)
    total = np.diff(begins, append=len(marked))
    return _sums(pairs.pair_of[bigrams[begins] // size], np.minimum(theirs, total - theirs), pairs.count)


def _longest_common(pairs: _Pairs) -> IntArray:
    """Return for each pair the length of the longest common subsequence of words."""
    # Texts of a character for each word: rapidfuzz compares these without looking at a Python object a word.
    first = np.searchsorted(pairs.pair_of, np.arange(pairs.count))
    ours, theirs = (
        _characters(entries - first[pairs.pair_of[entries]], texts.sizes)
        for entries, texts in ((pairs.our_entries, pairs.ours), (pairs.their_entries, pairs.theirs))
    )
    return np.array([LCSseq.similarity(a, b) for a, b in zip(ours, theirs, strict=True)], np.int64)


def _characters(words: IntArray, sizes: IntArray) -> list[str]:
    """Return each text with its words, numbered from 0 within their pair, as the characters of these code points."""
    whole = words.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
    ends = np.cumsum(sizes).tolist()
    return [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _summary_hits(pairs: _Pairs) -> IntArray:
    """Return by pair the words of the reference on some path, each at most as often as the prediction has it.

    rouge-score goes through the lines with a count of what is left of each word on both sides. The reference's count
    cannot run out, since no position is taken twice; so only the prediction's bounds the hits, whatever the order.
    """
    taken = _is_on_path(pairs)
    return pairs.common(pairs.our_entries, pairs.their_entries[taken])


def _is_on_path(pairs: _Pairs) -> npt.NDArray[np.bool_]:
    """Return for each word of the references whether it is on the path of any line of its prediction."""
    lengths = pairs.theirs.lengths
    ends = np.cumsum(lengths)
    place = np.arange(len(pairs.their_entries)) - np.repeat(ends - lengths, lengths)  # of each word in its line
    unions = np.zeros(len(lengths), np.uint64)
    short = np.flatnonzero(lengths <= lcs.WORD_BITS)
    unions[short] = _short_unions(pairs, short, place)
    fits = np.repeat(lengths <= lcs.WORD_BITS, lengths)
    shifts = np.where(fits, place, 0).astype(np.uint64)
    taken = ((np.repeat(unions, lengths) >> shifts) & np.uint64(1)).astype(np.bool_) & fits
    for line in np.flatnonzero(lengths > lcs.WORD_BITS).tolist():
        begin, end = int(ends[line] - lengths[line]), int(ends[line])
        taken[begin:end] = _long_union(pairs, begin, end)
    return taken


def _long_union(pairs: _Pairs, begin: int, end: int) -> npt.NDArray[np.bool_]:
    """Return the positions as `_short_unions` does, for one line of a reference that is too long for a machine word."""
    reference = pairs.their_entries[begin:end].tolist()
    pair = int(pairs.pair_of[reference[0]])
    first = int(pairs.ours.lines[:pair].sum())
    candidates = []
    at = int(pairs.ours.lengths[:first].sum())
    for length in pairs.ours.lengths[first : first + int(pairs.ours.lines[pair])].tolist():
        candidates.append(pairs.our_entries[at : at + length].tolist())
        at += length
    bits = lcs.union(reference, candidates)
    packed = np.frombuffer(bits.to_bytes((len(reference) + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, count=len(reference), bitorder="little").astype(np.bool_)


def _short_unions(pairs: _Pairs, short: IntArray, place: IntArray) -> npt.NDArray[np.uint64]:
    """Return, for each short line of the references, its positions on the path of any line of its prediction."""
    ours, theirs = pairs.ours, pairs.theirs
    pair = np.repeat(np.arange(pairs.count), theirs.lines)[short]
    lines = np.bincount(pair, minlength=pairs.count)  # short lines of each reference
    line = np.arange(len(short)) - np.repeat(np.cumsum(lines) - lines, lines)  # of each, its place among them
    # A mask for each entry and short line of its pair; entries that a line lacks keep 0.
    width = lines[pairs.pair_of]
    places = np.cumsum(width) - width
    masks = np.zeros(int(width.sum()), np.uint64)
    in_short = np.repeat(theirs.lengths <= lcs.WORD_BITS, theirs.lengths)
    words = pairs.their_entries[in_short]
    bits = np.uint64(1) << place[in_short].astype(np.uint64)
    np.add.at(masks, places[words] + np.repeat(line, theirs.lengths[short]), bits)
    # A lane for each short line and each line of the prediction.
    count = ours.lines[pair]
    owner = np.repeat(np.arange(len(short)), count)
    first = np.cumsum(count) - count
    ours_first = np.cumsum(ours.lines) - ours.lines
    candidate = np.arange(len(owner)) - np.repeat(first, count) + ours_first[pair][owner]
    begins = np.cumsum(ours.lengths) - ours.lengths
    order = np.argsort(-ours.lengths[candidate], kind="stable")
    candidate, lane_owner = candidate[order], owner[order]
    marks = lcs.unions(
        lcs.Lanes(
            rows=theirs.lengths[short][lane_owner],
            columns=ours.lengths[candidate],
            start=begins[candidate],
            line=line[lane_owner],
            places=places[pairs.our_entries],
            masks=masks,
        )
    )
    unions = np.zeros(len(short), np.uint64)
    np.bitwise_or.at(unions, lane_owner, marks)
    return unions


def _sums(group: IntArray, values: IntArray, count: int) -> IntArray:
    """Return the sum of `values` by group; sums of counts are exact in the floats that bincount uses."""
    return np.bincount(group, values, minlength=count).astype(np.int64)


def _fmeasure(hits: IntArray, ours: IntArray, theirs: IntArray) -> FloatArray:
    precision = hits / np.maximum(ours, 1)
    recall = hits / np.maximum(theirs, 1)
    total = precision + recall
    return np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0)
