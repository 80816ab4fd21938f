"""ROUGE of all pairs of a run, by rouge-score on all cores; ROUGE-L in a faster way with the same result.

Each text is stripped and its sentences are put on lines of their own, for ROUGE-Lsum; the words are stemmed
(mlcommons/inference language/llama3.1-8b/evaluation.py, which uses the `rouge` metric of the evaluate package, a
wrapper of rouge-score).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace

from cm4vllm.accuracy.sentences import Sentences, on_lines
from cm4vllm.common.errors import RunFailed
from cm4vllm.common.processors import usable_processors
from cm4vllm.common.programs.processes import die_with_parent, spawned_safely
from cm4vllm.common.units import duration_text

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")

#: Pairs that a process takes at a time: few, so that none of them waits long for the others at the end.
CHUNK = 16
#: Seconds of one core for a pair of texts of n words each: so many for each word, and so many for each cell of an n x n
#: table, as ROUGE-Lsum fills it (measured by benchmarks/rouge.py).
_WORD_S, _CELL_S = 31e-6, 2.42e-7
#: Words of a text for each of its tokens: assumed, as of English in the vocabularies of these models.
_WORDS_PER_TOKEN = 0.75


@dataclass(frozen=True)
class PairScores:
    """The F-measures of each pair by type, in [0, 1], and each prediction's length in characters as it was scored."""

    fmeasures: dict[str, list[float]]
    lengths: list[int]


class PairScorer:
    """Scores pairs of whole texts, which it splits into sentences; each distinct word is stemmed once."""

    def __init__(self, sentences: Sentences, types: Sequence[str]) -> None:
        """Take what splits sentences, and the kinds of ROUGE."""
        # nltk takes a third of a second to load: a plan and a run that scores nothing do without.
        from nltk.stem.porter import PorterStemmer
        from rouge_score.rouge_scorer import RougeScorer
        from rouge_score.tokenize import tokenize

        stemmer = SimpleNamespace(stem=cache(PorterStemmer().stem))
        self._tokenize, self._types = partial(tokenize, stemmer=stemmer), types
        others = [kind for kind in types if kind != "rougeL"]
        self._scorer = RougeScorer(others, tokenizer=SimpleNamespace(tokenize=self._tokenize))
        self._split = sentences.splitter()

    def score(self, prediction: str, reference: str) -> tuple[dict[str, float], int]:
        """Return the F-measures of a prediction by type, and its length in characters as it was scored."""
        ours, theirs = on_lines(self._split, prediction), on_lines(self._split, reference)
        scores = {kind: float(score.fmeasure) for kind, score in self._scorer.score(theirs, ours).items()}
        if "rougeL" in self._types:
            scores["rougeL"] = _rouge_l(self._tokenize(ours), self._tokenize(theirs))
        return scores, len(ours)


def _rouge_l(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """Return the F-measure of ROUGE-L of two lists of words.

    rouge-score fills a table of all pairs of words for the length of their longest common subsequence, a third of the
    time of all scores. Here a row of that table is the bits of a number (Hyyrö, 2004), with the same result.
    """
    if not prediction or not reference:
        return 0.0
    places: dict[str, int] = {}
    for number, word in enumerate(reference):
        places[word] = places.get(word, 0) | 1 << number
    row = everywhere = (1 << len(reference)) - 1
    for word in prediction:
        matched = row & places.get(word, 0)
        row = (row + matched | row - matched) & everywhere
    length = (row ^ everywhere).bit_count()
    precision, recall = length / len(prediction), length / len(reference)
    return 2 * precision * recall / (precision + recall) if length else 0.0


def expected_seconds(pairs: int, tokens: float, types: Sequence[str] = TYPES, workers: int | None = None) -> float:
    """Return about how long `score_pairs` takes for answers and references of so many tokens."""
    words = _WORDS_PER_TOKEN * tokens
    return pairs * words * (_WORD_S + ("rougeLsum" in types) * words * _CELL_S) / (workers or usable_processors())


def score_pairs(
    predictions: Sequence[str],
    references: Sequence[str],
    sentences: Sentences,
    types: Sequence[str] = TYPES,
    *,
    workers: int | None = None,
    report: Callable[[str], None] = lambda words: None,
) -> PairScores:
    """Score each prediction against its reference; `report` is called with how far this is.

    Raises RunFailed when a process ends unexpectedly.
    """
    count, begin = len(predictions), time.monotonic()
    scored: list[tuple[dict[str, float], int]] = []
    with _executor(sentences, types, min(workers or usable_processors(), -(-count // CHUNK))) as executor:
        for done, pair in enumerate(executor.map(_score, predictions, references, chunksize=CHUNK), 1):
            scored.append(pair)
            if done % CHUNK == 0:
                left = duration_text((time.monotonic() - begin) / done * (count - done))
                report(f"ROUGE of {done:,} of {count:,} answers, about {left} left")
    fmeasures = {type_: [scores[type_] for scores, _ in scored] for type_ in types}
    return PairScores(fmeasures, [length for _, length in scored])


_scorer: PairScorer


def _start(sentences: Sentences, types: Sequence[str]) -> None:
    global _scorer
    _scorer = PairScorer(sentences, types)


def _start_worker(sentences: Sentences, types: Sequence[str]) -> None:
    die_with_parent()
    _start(sentences, types)


def _score(prediction: str, reference: str) -> tuple[dict[str, float], int]:
    return _scorer.score(prediction, reference)


@contextmanager
def _executor(sentences: Sentences, types: Sequence[str], workers: int) -> Iterator[Executor]:
    """Yield an executor of so many processes, or of one thread of this process if one worker is enough."""
    arguments = (sentences, types)
    if workers <= 1:
        with ThreadPoolExecutor(1, initializer=_start, initargs=arguments) as thread:
            yield thread
        return
    try:
        with (
            spawned_safely() as context,
            ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=arguments) as pool,
        ):
            yield pool
    except BrokenProcessPool as error:
        raise RunFailed(
            "a process that scores answers ended unexpectedly",
            cause=str(error),
            remedy="most often the memory ran out; score the run again",
        ) from error
