"""ROUGE of an accuracy run while it goes on, from a random part of the answers that have come."""

import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cm4vllm.accuracy.answer_texts import Detokenizer
from cm4vllm.accuracy.rouge import TYPES
from cm4vllm.accuracy.scored_pairs import PairScorer
from cm4vllm.accuracy.scoring import require_tokenizer, rows_of_samples, scorer_of
from cm4vllm.accuracy.sentences import Sentences
from cm4vllm.common.student import student_t
from cm4vllm.loadgen.process.run_status import PartialScore, PartialScores
from cm4vllm.records.run import RunSettings

#: At most so many samples are scored: their mean is then known to about half a point of ROUGE.
DRAWN = 4096
#: At most this share of one core, detokenising included; a batch may exceed it for a moment.
SHARE = 0.0125
#: Answers scored at a time, and those that may wait.
BATCH, BACKLOG = 16, 64
#: Fewer answers are not shown: a spread seen in so few says little.
FEWEST = 10

_NAMES = ("ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum")


class LiveScores:
    """Takes answers as they come; estimates the scores of the whole run.

    Samples are drawn in a random order before the run, and their answers are scored as they come. When more come than
    the time allows, fewer of those drawn are kept, the first of that order: so each answer that has come had the same
    chance to count, whenever it came.

    The bounds are Student's, for a mean of `count` samples out of `samples`: F-measures lie in [0, 1], so their mean is
    as good as normal from a few dozen on, and a bootstrap would find the same at a hundred times the cost. They tell
    the luck of the draw; not that answers which come late, because they are long, may score otherwise.
    """

    def __init__(
        self,
        scorer: PairScorer,
        detokenizer: Detokenizer,
        references: dict[int, str],
        samples: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """Take the references of the samples drawn, by index, in the order in which they were drawn."""
        self._scorer = scorer
        self._detokenizer = detokenizer
        self._references = list(references.values())
        self._places = {index: place for place, index in enumerate(references)}
        self._samples = samples
        self._waiting: deque[tuple[int, Sequence[int]]] = deque()
        self._kept = len(references)
        self._scores = np.full((len(references), len(TYPES)), np.nan)
        self._clock, self._spent = clock, spent
        self._begin, self._cost = clock(), 0.0
        self._broken = ""

    def __call__(self, answers: Sequence[tuple[int, Sequence[int]]]) -> PartialScores:
        """Take answers, each the index of its sample and its token ids; return what is known of the scores.

        It never raises: the run goes on, and its answers are scored when it has ended.
        """
        if not self._broken:
            try:
                return self._take(answers)
            except Exception as error:
                self._broken = f"{type(error).__name__}: {error}"
        return PartialScores(problem=self._broken)

    def _take(self, answers: Sequence[tuple[int, Sequence[int]]]) -> PartialScores:
        begin = self._spent()
        for index, tokens in answers:
            place = self._places.pop(index, None)
            if place is not None and place < self._kept:
                self._waiting.append((place, tokens))
        while self._waiting and self._cost + self._spent() - begin < SHARE * (self._clock() - self._begin):
            self._score([self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))])
        while len(self._waiting) > BACKLOG:
            self._kept = self._kept * 3 // 4
            self._waiting = deque(answer for answer in self._waiting if answer[0] < self._kept)
        scores = self._partial()
        self._cost += self._spent() - begin
        return scores

    def means(self) -> tuple[int, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return how many samples count, the mean of each type in percent, and half the width of its 95 % bounds."""
        scores = self._scores[: self._kept]
        scores = scores[~np.isnan(scores[:, 0])] * 100
        count = len(scores)
        if count < 2:
            return count, np.full(len(TYPES), np.nan), np.full(len(TYPES), np.inf)
        left = 1 - count / self._samples  # of the variance: none, once every sample of the run counts
        half = student_t(0.975, count - 1) * scores.std(axis=0, ddof=1) * math.sqrt(left / count)
        return count, scores.mean(axis=0), half

    def _score(self, batch: list[tuple[int, Sequence[int]]]) -> None:
        places = [place for place, _ in batch]
        predictions = self._detokenizer.decode([tokens for _, tokens in batch])
        scored = self._scorer.score(predictions, [self._references[place] for place in places])
        self._scores[places] = np.column_stack([scored.fmeasures[type_] for type_ in TYPES])

    def _partial(self) -> PartialScores:
        count, means, halves = self.means()
        if count < FEWEST:
            return PartialScores(answers=count)
        scores = zip(_NAMES, means.tolist(), halves.tolist(), strict=True)
        return PartialScores(
            answers=count,
            scores=tuple(
                PartialScore(name=name, mean=round(mean, 3), half=round(half, 3)) for name, mean, half in scores
            ),
        )


def live_scores(settings: RunSettings, *, nltk_data: str | None = None) -> LiveScores | None:
    """Return the live scores of a run, None where none of them is ROUGE, or the server is a simulated one.

    Raises what scoring it would raise, before the run: InstallError and others.
    `nltk_data` is the folder in which the sentence model lies, nltk's own folders without it.
    """
    wanted = scorer_of(settings.terms)
    require_tokenizer(settings)
    if settings.server.simulated is not None or not wanted.rouge:
        return None
    scorer = PairScorer(Sentences.named(settings.dataset.sentences, nltk_data))
    rows = rows_of_samples(settings.dataset)[: settings.samples]
    places = [place for place, row in enumerate(rows) if wanted.by_rouge(row)]
    drawn = random.Random(0).sample(places, min(DRAWN, len(places)))  # noqa: S311 - the same samples in every run
    references = {place: str(rows[place]["output"]) for place in drawn}
    return LiveScores(scorer, Detokenizer(Path(settings.model.path)), references, len(places))
