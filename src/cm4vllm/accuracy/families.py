"""The families of metrics: what is computed of the answers to a benchmark's samples, as its reference script does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cm4vllm.accuracy.exact_match import answered, retrieved
from cm4vllm.accuracy.gsm8k import solved
from cm4vllm.accuracy.multiple_choice import chosen, chosen_at_the_end, integer, is_choice, is_integer
from cm4vllm.accuracy.pairs import score_pairs
from cm4vllm.accuracy.rouge import TYPES
from cm4vllm.accuracy.sentences import Sentences, on_lines

__all__ = [
    "DATASET",
    "METRIC",
    "Samples",
    "Scored",
    "parts_of_deepseek",
    "parts_of_gpt_oss",
    "rouge_and_exact_match",
    "rouge_and_gsm8k",
    "rouge_of_all",
]

#: The column that names a sample's metric, and the metrics that are no ROUGE, each a function of prediction and
#: reference, in percent.
METRIC = "metric"
#: The column that names the dataset that a sample is from.
DATASET = "dataset"
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

    def of(self, column: str, value: str) -> Samples:
        """Return those whose row has this value in a column."""
        places = [place for place, row in enumerate(self.rows) if row[column] == value]
        return replace(
            self, predictions=[self.predictions[place] for place in places], rows=[self.rows[place] for place in places]
        )


@dataclass(frozen=True)
class Scored:
    """The metrics by their labels in accuracy.txt, and the characters of all answers as they were scored.

    `characters` is None where the reference script does not count them. `verified` says how many of the pairs
    rouge-score scored again, with the same result.
    """

    values: dict[str, float | int]
    characters: int | None
    verified: int


def rouge_of_all(samples: Samples) -> Scored:
    """Score every sample by ROUGE (language/llama3.1-8b/evaluation.py, language/llama2-70b/evaluate-accuracy.py)."""
    pairs = score_pairs(
        samples.predictions, samples.references, samples.sentences, seed=samples.seed, workers=samples.workers
    )
    values: dict[str, float | int] = {type_: round(float(np.mean(pairs.fmeasures[type_])) * 100, 4) for type_ in TYPES}
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
        pairs = score_pairs(
            [samples.predictions[place] for place in places],
            [references[place] for place in places],
            samples.sentences,
            seed=samples.seed,
            workers=samples.workers,
        )
        rouge = {place: 100 * value for place, value in zip(places, pairs.fmeasures["rougeL"], strict=True)}
        values["rougeL"] = _mean(rouge, len(samples.rows))
        characters, verified = characters + sum(pairs.lengths), pairs.verified
    if exact:
        values["exact_match"] = _mean(exact, len(samples.rows))
    return Scored(values, characters, verified)


def rouge_and_gsm8k(samples: Samples) -> Scored:
    """Score OpenOrca by ROUGE, GSM8K by its numbers (language/mixtral-8x7b/evaluate-accuracy.py).

    The characters are those of OpenOrca alone. A mean is left out where it has no samples, and so is MBXP, whose
    programs would have to be run.
    """
    orca, questions = samples.of(DATASET, "OpenOrca"), samples.of(DATASET, "GSM8K")
    scored = rouge_of_all(orca) if orca.rows else Scored({}, 0, 0)
    values = dict(scored.values)
    if questions.rows:
        right = sum(map(solved, questions.predictions, questions.references))
        values["gsm8k"] = 100.0 * right / len(questions.rows)
    return replace(scored, values=values)


#: How the answers to the samples of a dataset are judged, by a part of the dataset's name, the first that fits; None
#: where that takes a grader of mathematics or the running of programs.
_Judges = Mapping[str, Callable[[str, str], bool] | None]
_DEEPSEEK: _Judges = {
    "gpqa": lambda text, wanted: is_choice(chosen(text, "ABCD"), wanted, "ABCD"),
    "mmlu_pro": lambda text, wanted: is_choice(chosen(text, "ABCDEFGHIJ"), wanted, "ABCDEFGHIJ"),
    "math500": None,
    "aime": lambda text, wanted: is_integer(integer(text), wanted),
    "livecodebench": None,
}
_GPT_OSS: _Judges = {
    "gpqa": lambda text, wanted: is_choice(chosen_at_the_end(text, "ABCD"), wanted, "ABCD"),
    "aime": lambda text, wanted: is_integer(integer(text), wanted),
    "livecodebench": None,
}


def parts_of_deepseek(samples: Samples) -> Scored:
    """Score the letters of GPQA and MMLU-Pro and the numbers of AIME (language/deepseek-r1/eval_accuracy.py).

    Each is a score of its own: exact_match is over all samples, and left out.
    """
    return _parts(samples, _DEEPSEEK)


def parts_of_gpt_oss(samples: Samples) -> Scored:
    """Score the letters of GPQA and the numbers of AIME (language/gpt-oss-120b/eval_accuracy.py).

    Each is a score of its own: exact_match is over all samples, and left out.
    """
    return _parts(samples, _GPT_OSS)


def _parts(samples: Samples, judges: _Judges) -> Scored:
    """Return the right answers in percent of each dataset that can be judged and has samples."""
    right: dict[str, list[bool]] = {}
    for prediction, row in zip(samples.predictions, samples.rows, strict=True):
        name = str(row[DATASET]).lower()
        key = next((key for key in judges if key in name), "")
        if judge := judges.get(key):
            right.setdefault(key, []).append(judge(prediction, str(row["output"])))
    return Scored({key: 100.0 * sum(right[key]) / len(right[key]) for key in judges if key in right}, None, 0)


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
