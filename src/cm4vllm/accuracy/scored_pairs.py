"""All pairs of a run scored on all cores, and a random sample of them scored again by rouge-score itself.

Each text is stripped and its sentences are put on lines of their own, for ROUGE-Lsum; the words are stemmed
(mlcommons/inference language/llama3.1-8b/evaluation.py, which uses the `rouge` metric of the evaluate package, a
wrapper of rouge-score).
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

from cm4vllm.accuracy.rouge import TYPES, rouge
from cm4vllm.accuracy.rouge_words import Vocabulary
from cm4vllm.accuracy.sentences import Sentences, on_lines
from cm4vllm.common.errors import RunFailed
from cm4vllm.common.processors import usable_processors
from cm4vllm.common.programs.processes import die_with_parent, spawned_safely

#: Pairs that are scored at once: enough that the calls of numpy cost little, few enough for the processor's cache.
CHUNK = 128
#: Pairs that rouge-score scores again in each run: were 3 % of all pairs wrong, 95 of 100 runs would see it.
VERIFIED = 100


@dataclass(frozen=True)
class PairScores:
    """The F-measures of each pair by type, in [0, 1], and each prediction's length in characters as it was scored.

    `verified` says how many pairs rouge-score scored again, with the same result to the last bit.
    """

    fmeasures: dict[str, list[float]]
    lengths: list[int]
    verified: int


class PairScorer:
    """Scores whole texts, which it splits into sentences; it keeps the stems of the words that it has seen."""

    def __init__(self, sentences: Sentences) -> None:
        self._split = sentences.splitter()
        self._vocabulary = Vocabulary()

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> PairScores:
        """Score each prediction against its reference, none of them verified."""
        ours, theirs = ([self._lines(text) for text in texts] for texts in (predictions, references))
        scores = rouge(ours, theirs, self._vocabulary)
        return PairScores({type_: scores[type_].tolist() for type_ in TYPES}, list(map(len, ours)), 0)

    def score_plainly(self, prediction: str, reference: str) -> dict[str, float]:
        """Return rouge-score's own scores of one pair."""
        from rouge_score.rouge_scorer import RougeScorer

        scores = RougeScorer(list(TYPES), use_stemmer=True).score(self._lines(reference), self._lines(prediction))
        return {type_: float(scores[type_].fmeasure) for type_ in TYPES}

    def _lines(self, text: str) -> str:
        return on_lines(self._split, text)


def score_pairs(
    predictions: Sequence[str],
    references: Sequence[str],
    sentences: Sentences,
    *,
    seed: str = "",
    workers: int | None = None,
) -> PairScores:
    """Score each prediction against its reference, and verify a sample of them that `seed` draws.

    Raises RunFailed when rouge-score gives another number for one of the sample.
    """
    drawn = random.Random(seed)  # noqa: S311 - a sample, not a secret
    sample = sorted(drawn.sample(range(len(predictions)), min(VERIFIED, len(predictions))))
    with _executor(sentences, min(workers or usable_processors(), -(-len(predictions) // CHUNK))) as executor:
        parts = [
            executor.submit(_score, predictions[start : start + CHUNK], references[start : start + CHUNK])
            for start in range(0, len(predictions), CHUNK)
        ]
        plain = [executor.submit(_score_plainly, predictions[index], references[index]) for index in sample]
        done = [part.result() for part in parts]
        expected = [future.result() for future in plain]
    scores = PairScores(
        {type_: [value for part in done for value in part.fmeasures[type_]] for type_ in TYPES},
        [length for part in done for length in part.lengths],
        len(sample),
    )
    _verify(scores, dict(zip(sample, expected, strict=True)))
    return scores


def _verify(scores: PairScores, expected: Mapping[int, Mapping[str, float]]) -> None:
    """Raise RunFailed if a score differs from that of rouge-score for the same pair."""
    differing = [
        f"pair {index}: {type_} is {scores.fmeasures[type_][index]!r}, rouge-score has {value!r}"
        for index, values in expected.items()
        for type_, value in values.items()
        if scores.fmeasures[type_][index] != value
    ]
    if differing:
        raise RunFailed(
            "the scores are refused: they differ from rouge-score's",
            cause="\n".join([*differing[:5], f"{len(differing)} differences in {len(expected)} pairs"]),
            remedy="report it with the run's folder; the answers themselves are not in doubt",
        )


_scorer: PairScorer


def _start(sentences: Sentences) -> None:
    global _scorer
    _scorer = PairScorer(sentences)


def _start_worker(sentences: Sentences) -> None:
    die_with_parent()
    _start(sentences)


def _score(predictions: Sequence[str], references: Sequence[str]) -> PairScores:
    return _scorer.score(predictions, references)


def _score_plainly(prediction: str, reference: str) -> dict[str, float]:
    return _scorer.score_plainly(prediction, reference)


@contextmanager
def _executor(sentences: Sentences, workers: int) -> Iterator[Executor]:
    """Yield an executor of so many processes, or of one thread of this process if one worker is enough."""
    if workers <= 1:
        _start(sentences)
        with ThreadPoolExecutor(1) as thread:
            yield thread
        return
    try:
        with (
            spawned_safely() as context,
            ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(sentences,)) as pool,
        ):
            yield pool
    except BrokenProcessPool as error:
        raise RunFailed(
            "a process that scores answers ended unexpectedly",
            cause=str(error),
            remedy="most often the memory ran out; score the run again",
        ) from error
