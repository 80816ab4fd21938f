"""ROUGE-1, -2, -L and -Lsum as the reference scripts compute them, on all cores.

Each text is stripped and its sentences are put on lines of their own, for ROUGE-Lsum; the words are stemmed; the score
is the mean F-measure in percent (mlcommons/inference language/llama3.1-8b/evaluation.py, which uses the `rouge` metric
of the evaluate package, a wrapper of rouge-score).
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from cm4vllm.accuracy.text import sentence_splitter
from cm4vllm.common.processes import die_with_parent

__all__ = ["TYPES", "PairScores", "score_pairs"]

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")

#: Pairs in one piece of work: a worker takes seconds for it, so that all end at about the same time.
CHUNK = 256


@dataclass(frozen=True)
class PairScores:
    """The F-measures of each pair by type, in [0, 1], and each prediction's length in characters as it was scored."""

    fmeasures: dict[str, list[float]]
    lengths: list[int]


def score_pairs(predictions: Sequence[str], references: Sequence[str], sentences: str, *,
                workers: int | None = None) -> PairScores:
    """Score each prediction against its reference; `sentences` names the splitter. Raises what the splitter raises."""
    sentence_splitter(sentences)  # fails here, in words, rather than in a worker
    chunks = list(_chunks(predictions, references))
    count = min(workers or len(os.sched_getaffinity(0)), len(chunks))
    if count <= 1:
        parts = [_score(*chunk, sentences) for chunk in chunks]
    else:
        context = multiprocessing.get_context("spawn")  # no copy of the parent's threads and locks
        with ProcessPoolExecutor(count, mp_context=context, initializer=die_with_parent) as pool:
            parts = list(pool.map(_score, *zip(*chunks, strict=True), [sentences] * len(chunks)))
    return PairScores(
        {type_: [value for part in parts for value in part.fmeasures[type_]] for type_ in TYPES},
        [length for part in parts for length in part.lengths],
    )


def _chunks(predictions: Sequence[str], references: Sequence[str]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    for start in range(0, len(predictions), CHUNK):
        yield predictions[start:start + CHUNK], references[start:start + CHUNK]


def _score(predictions: Sequence[str], references: Sequence[str], sentences: str) -> PairScores:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(TYPES), tokenizer=_Words())
    split = sentence_splitter(sentences)
    fmeasures: dict[str, list[float]] = {type_: [] for type_ in TYPES}
    lengths = []
    for prediction, reference in zip(predictions, references, strict=True):
        ours, theirs = ("\n".join(split(text.strip())) for text in (prediction, reference))
        scores = scorer.score(theirs, ours)
        for type_ in TYPES:
            fmeasures[type_].append(scores[type_].fmeasure)
        lengths.append(len(ours))
    return PairScores(fmeasures, lengths)


class _Words:
    """rouge-score's own splitting and stemming of words; each word is stemmed once, or that takes most of the time."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self.stem = functools.cache(PorterStemmer().stem)

    def tokenize(self, text: str) -> list[str]:
        from rouge_score.tokenize import tokenize

        words: list[str] = tokenize(text, self)
        return words
