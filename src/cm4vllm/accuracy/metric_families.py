"""The families of metrics: what is computed of the answers to a benchmark's samples, as its reference script does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cm4vllm.accuracy.exact_match import (
    chosen_at_the_end,
    chosen_letter,
    integer,
    is_choice,
    is_integer,
    is_solved,
    percent_answered,
    percent_retrieved,
)
from cm4vllm.accuracy.graders.catalogue import GraderRecord
from cm4vllm.accuracy.graders.judging import judge
from cm4vllm.accuracy.product_catalogue import hierarchical_f1
from cm4vllm.accuracy.rouge import TYPES, PairScores, score_pairs
from cm4vllm.accuracy.sentences import Sentences, on_lines
from cm4vllm.accuracy.word_errors import normalise_texts, word_error_rate
from cm4vllm.common.errors import InstallError

#: The column that names a sample's metric, and the metrics that are no ROUGE, each a function of prediction and
#: reference, in percent.
METRIC = "metric"
#: The column that names the dataset that a sample is from.
DATASET = "dataset"
_EXACT: Mapping[str, Callable[[str, str], float]] = {"qa_em": percent_answered, "niah_em": percent_retrieved}


@dataclass(frozen=True)
class Samples:
    """The input of a metric: the text of each answer, and the row of the dataset that the answer belongs to.

    `workers` are the processes to use. `graders` are those that are ready, by name: a metric that another would judge
    is left out. `speech_packages` is the folder of whisper's normaliser. `report` is called with how far the work is.
    """

    predictions: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    sentences: Sentences
    workers: int | None = None
    graders: Mapping[str, GraderRecord] = field(default_factory=dict)
    speech_packages: Path | None = None
    report: Callable[[str], None] = lambda words: None

    @property
    def references(self) -> list[str]:
        """Return the reference text of each sample."""
        return [str(row["output"]) for row in self.rows]

    def at(self, places: Sequence[int]) -> Samples:
        """Return those at these places."""
        return replace(
            self, predictions=[self.predictions[place] for place in places], rows=[self.rows[place] for place in places]
        )


@dataclass(frozen=True)
class Scored:
    """The metrics by their labels in accuracy.txt, and the characters of all answers as they were scored.

    `characters` is None where the reference script does not count them.
    """

    values: dict[str, float | int]
    characters: int | None


def rouge_of_all(samples: Samples) -> Scored:
    """Score every sample by ROUGE (language/llama3.1-8b/evaluation.py, language/llama2-70b/evaluate-accuracy.py)."""
    pairs = _rouge_of_samples(samples)
    values: dict[str, float | int] = {type_: round(float(np.mean(pairs.fmeasures[type_])) * 100, 4) for type_ in TYPES}
    return Scored(values, sum(pairs.lengths))


def _rouge_of_samples(samples: Samples, types: Sequence[str] = TYPES) -> PairScores:
    texts, sentences = (samples.predictions, samples.references), samples.sentences
    return score_pairs(*texts, sentences, types, workers=samples.workers, report=samples.report)


def rouge_and_exact_match(samples: Samples) -> Scored:
    """Score each sample by ROUGE-L or an exact match, as its row says (language/llama3.1-405b/evaluate-accuracy.py).

    A mean covers the samples of its metric, and is left out where there are none.
    """
    exact, characters = _exact_matches(samples)
    places = [place for place, row in enumerate(samples.rows) if row[METRIC] not in _EXACT]
    values: dict[str, float | int] = {}
    if places:
        pairs = _rouge_of_samples(samples.at(places), ["rougeL"])
        rouge = {place: 100 * value for place, value in zip(places, pairs.fmeasures["rougeL"], strict=True)}
        values["rougeL"] = _mean(rouge, len(samples.rows))
        characters += sum(pairs.lengths)
    if exact:
        values["exact_match"] = _mean(exact, len(samples.rows))
    return Scored(values, characters)


def rouge_gsm8k_and_mbxp(samples: Samples) -> Scored:
    """Score OpenOrca by ROUGE, GSM8K by its numbers, MBXP by its tests (language/mixtral-8x7b/evaluate-accuracy.py).

    The characters are those of OpenOrca alone. A mean is left out where it has no samples. The official script judges
    the programs of MBXP, those of six languages; it leaves others out.
    """
    orca = samples.at([place for place, row in enumerate(samples.rows) if row[DATASET] == "OpenOrca"])
    scored = rouge_of_all(orca) if orca.rows else Scored({}, 0)
    return replace(scored, values=scored.values | _percent_by_dataset(samples, _MIXTRAL, _verdicts(samples, _MIXTRAL)))


def _mbxp_task(response: str, row: Mapping[str, Any]) -> dict[str, str]:
    """Return the grader's input for an answer of MBXP, as create_mbxp_dict of evaluate-accuracy.py makes it."""
    lang, _, entry_point = str(row["id"]).partition("_")
    return {
        "lang": lang,
        "prompt": str(row["input"]),
        "test_code": str(row["output"]),
        "entry_point": entry_point,
        "response": response,
    }


def _livecodebench_task(response: str, row: Mapping[str, Any]) -> dict[str, str]:
    return {"response": response, "question_id": str(row["output"])}


@dataclass(frozen=True)
class _ByGrader:
    """The grader that judges the answers to a dataset's samples; `task` makes its input from an answer and its row."""

    name: str
    task: Callable[[str, Mapping[str, Any]], Mapping[str, str]]


#: The judges of the answers to a dataset's samples, by a part of the dataset's name; the first that fits counts.
_Judges = Mapping[str, Callable[[str, str], bool] | _ByGrader]
_MIXTRAL: _Judges = {"gsm8k": is_solved, "mbxp": _ByGrader("mbxp", _mbxp_task)}
_DEEPSEEK: _Judges = {
    "gpqa": lambda text, wanted: is_choice(chosen_letter(text, "ABCD"), wanted, "ABCD"),
    "mmlu_pro": lambda text, wanted: is_choice(chosen_letter(text, "ABCDEFGHIJ"), wanted, "ABCDEFGHIJ"),
    "math500": _ByGrader("math", lambda response, row: {"response": response, "reference": str(row["output"])}),
    "aime": lambda text, wanted: is_integer(integer(text), wanted),
    "livecodebench": _ByGrader("livecodebench", _livecodebench_task),
}
_GPT_OSS: _Judges = {
    "gpqa": lambda text, wanted: is_choice(chosen_at_the_end(text, "ABCD"), wanted, "ABCD"),
    "aime": lambda text, wanted: is_integer(integer(text), wanted),
    "livecodebench": _ByGrader("livecodebench_v6", _livecodebench_task),
}
#: The number of times that gpt-oss-120b's dataset asks each question (DATASET_REPEATS of eval_mlperf_accuracy.py).
_REPEATS = {"aime25": 8, "gpqa_diamond": 5, "livecodebench_v6": 3}


def parts_of_deepseek(samples: Samples) -> Scored:
    """Score the answers to each dataset, and exact_match over all samples (language/deepseek-r1/eval_accuracy.py).

    What a grader judges that is not ready has no score; neither has exact_match then.
    """
    return _of_parts(samples, _DEEPSEEK, lambda _, verdicts: 100.0 * sum(verdicts) / len(verdicts))


def parts_of_gpt_oss(samples: Samples) -> Scored:
    """Score the answers to each dataset, and exact_match over all (language/gpt-oss-120b/eval_mlperf_accuracy.py).

    What a grader judges that is not ready has no score; neither has exact_match then.
    """
    return _of_parts(samples, _GPT_OSS, _weighted_percent_right)


def _of_parts(samples: Samples, judges: _Judges, whole: Callable[[Samples, Sequence[bool]], float]) -> Scored:
    """Score the answers to each dataset; where all of them are judged, `whole` gives exact_match."""
    verdicts = _verdicts(samples, judges)
    values = _percent_by_dataset(samples, judges, verdicts)
    judged = [right for right in verdicts if right is not None]
    if judged and len(judged) == len(verdicts):
        values["exact_match"] = whole(samples, judged)
    return Scored(values, None)


def _weighted_percent_right(samples: Samples, verdicts: Sequence[bool]) -> float:
    """Return the right answers in percent, each weighted by how often its question is asked.

    The script rounds it to three places.
    """
    right: dict[str, list[bool]] = {}
    for is_right, row in zip(verdicts, samples.rows, strict=True):
        right.setdefault(str(row[DATASET]).lower(), []).append(is_right)
    repeats = {name: _REPEATS.get(name, 1) for name in sorted(right)}
    most = sum(len(right[name]) / times for name, times in repeats.items())
    return round(sum(sum(right[name]) / times for name, times in repeats.items()) / most * 100, 3)


def _verdicts(samples: Samples, judges: _Judges) -> list[bool | None]:
    """Return True for each right answer, False for a wrong one, None without a judge or a ready grader."""
    verdicts: list[bool | None] = [None] * len(samples.rows)
    for key, judges_it in judges.items():
        places = [place for place, row in enumerate(samples.rows) if _key(row, judges) == key]
        if not isinstance(judges_it, _ByGrader):
            for place in places:
                verdicts[place] = judges_it(samples.predictions[place], str(samples.rows[place]["output"]))
        elif places and (record := samples.graders.get(judges_it.name)):
            tasks = [judges_it.task(samples.predictions[place], samples.rows[place]) for place in places]
            for place, verdict in zip(places, judge(record, tasks), strict=True):
                verdicts[place] = verdict.right
    return verdicts


def _percent_by_dataset(samples: Samples, judges: _Judges, verdicts: Sequence[bool | None]) -> dict[str, float | int]:
    """Return the right answers in percent of each dataset that was judged and has samples."""
    right: dict[str, list[bool]] = {}
    for is_right, row in zip(verdicts, samples.rows, strict=True):
        if is_right is not None:
            right.setdefault(_key(row, judges), []).append(is_right)
    return {key: 100.0 * sum(right[key]) / len(right[key]) for key in judges if key in right}


def _key(row: Mapping[str, Any], judges: _Judges) -> str:
    """Return the part of the name of a row's dataset that judges know it by, empty where they do not."""
    name = str(row[DATASET]).lower()
    return next((key for key in judges if key in name), "")


def product_categories(samples: Samples) -> Scored:
    """Score answers by the categories in them, in [0..1] (multimodal/qwen3-vl evaluation.py)."""
    return Scored({"f1": hierarchical_f1(list(zip(samples.predictions, samples.references, strict=True)))}, None)


def word_errors(samples: Samples) -> Scored:
    """Score transcripts by their word error rate, in percent (speech2text/accuracy_eval.py). Raises InstallError."""
    if samples.speech_packages is None:
        raise InstallError(
            "the word error rate needs whisper's normaliser",
            cause="the Python packages that score speech (get,speech-packages) are not installed",
            remedy="cm run script --tags=get,speech-packages",
        )
    texts = normalise_texts([*samples.predictions, *samples.references], samples.speech_packages)
    count = len(samples.predictions)
    wer = word_error_rate(texts[:count], texts[count:])
    return Scored({"wer": wer * 100, "accuracy": (1 - wer) * 100}, None)


def _exact_matches(samples: Samples) -> tuple[dict[int, float], int]:
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
