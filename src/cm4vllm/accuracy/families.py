"""The families of metrics: what is computed of the answers to a benchmark's samples, as its reference script does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cm4vllm.accuracy.exact_match import answered, retrieved
from cm4vllm.accuracy.pairs import score_pairs
from cm4vllm.accuracy.rouge import TYPES
from cm4vllm.accuracy.sentences import Sentences, on_lines

__all__ = ["METRIC", "Samples", "Scored", "rouge_and_exact_match", "rouge_of_all"]

#: The column that names a sample's metric, and the metrics that are no ROUGE, each a function of prediction and
#: reference, in percent.
METRIC = "metric"
_EXACT: Mapping[str, Callable[[str, str], float]] = {"qa_em": answered, "niah_em": retrieved}


@dataclass(frozen=True)
class Samples:
    """What is scored: the text of each answer, and the row of the dataset that it belongs to.

    `seed` draws the pairs that are verified, `workers` are the processes to use.
    """

    predictions: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    sentences: Sentences
    seed: str = ""
    workers: int | None = None

    @property
    def references(self) -> list[str]:
        return [str(row["output"]) for row in self.rows]


@dataclass(frozen=True)
class Scored:
    """The metrics by their labels in accuracy.txt, and the characters of all answers as they were scored.

    `verified` says how many of the pairs rouge-score scored again, with the same result.
    """

    values: dict[str, float | int]
    characters: int
    verified: int


def rouge_of_all(samples: Samples) -> Scored:
    """Score every sample by ROUGE (language/llama3.1-8b/evaluation.py, language/llama2-70b/evaluate-accuracy.py)."""
    pairs = score_pairs(samples.predictions, samples.references, samples.sentences, seed=samples.seed,
                        workers=samples.workers)
    values: dict[str, float | int] = {
        type_: round(float(np.mean(pairs.fmeasures[type_])) * 100, 4) for type_ in TYPES
    }
    return Scored(values, sum(pairs.lengths), pairs.verified)


def rouge_and_exact_match(samples: Samples) -> Scored:
    """Score each sample by ROUGE-L or an exact match, as its row says (language/llama3.1-405b/evaluate-accuracy.py).

    A mean covers the samples of its metric, and is left out where there are none.
    """
    exact, characters = _exact(samples)
    places = [place for place, row in enumerate(samples.rows) if row[METRIC] not in _EXACT]
    values: dict[str, float | int] = {}
    verified = 0
    if places:
        references = samples.references
        pairs = score_pairs([samples.predictions[place] for place in places], [references[place] for place in places],
                            samples.sentences, seed=samples.seed, workers=samples.workers)
        rouge = {place: 100 * value for place, value in zip(places, pairs.fmeasures["rougeL"], strict=True)}
        values["rougeL"] = _mean(rouge, len(samples.rows))
        characters, verified = characters + sum(pairs.lengths), pairs.verified
    if exact:
        values["exact_match"] = _mean(exact, len(samples.rows))
    return Scored(values, characters, verified)


def _exact(samples: Samples) -> tuple[dict[int, float], int]:
    """Return the exact matches by their sample's place, and the characters of these answers."""
    split, scores, characters = samples.sentences.splitter(), {}, 0
    for place, (row, prediction) in enumerate(zip(samples.rows, samples.predictions, strict=True)):
        if row[METRIC] in _EXACT:
            ours, theirs = (on_lines(split, text) for text in (prediction, str(row["output"])))
            scores[place] = _EXACT[row[METRIC]](ours, theirs)
            characters += len(ours)
    return scores, characters


def _mean(values: Mapping[int, float], samples: int) -> float:
    """Return a mean as pandas computes it, to the last bit: summed over all samples, 0 for those without a value."""
    filled = np.zeros(samples)
    filled[list(values)] = list(values.values())
    return float(filled.sum() / len(values))
