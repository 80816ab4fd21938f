"""The accuracy of one run: its log scored against the dataset, as accuracy.txt and accuracy.json."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cm4vllm import __version__
from cm4vllm.accuracy.pairs import PairScores, score_pairs
from cm4vllm.accuracy.records import ACCURACY_FILE, ACCURACY_TEXT, AccuracyRecord, Score
from cm4vllm.accuracy.rouge import TYPES
from cm4vllm.accuracy.sentences import Sentences
from cm4vllm.accuracy.text import Detokenizer
from cm4vllm.assets.datasets import rows_of
from cm4vllm.assets.records import DatasetRecord
from cm4vllm.common.errors import DatasetError, ModelError, RunFailed, UsageError
from cm4vllm.common.files import sha256_of, write_text
from cm4vllm.common.progress import step
from cm4vllm.common.records import read_record, write_record
from cm4vllm.loadgen.logs import ACCURACY_LOG, read_accuracy_log
from cm4vllm.loadgen.records import RUN_FILE, RunRecord, RunSettings
from cm4vllm.rules import AccuracyTarget, Mode, Terms

__all__ = [
    "SCORERS",
    "Scorer",
    "accuracy_text",
    "references_of",
    "require_tokenizer",
    "score_run",
    "scorer_of",
]


@dataclass(frozen=True)
class Scorer:
    """How a benchmark's reference script writes its scores.

    `quoted` says that ROUGE stands in accuracy.txt as text ('38.7792'), which the checkers before round v5.1 do not
    read; `source` is the reference script.
    """

    quoted: bool
    source: str


#: The scorers by the name that the rules have for them. All of today's are families of ROUGE: the same computation,
#: written as the benchmark's own script writes it.
SCORERS = {
    "rouge": Scorer(quoted=True, source="language/llama3.1-8b/evaluation.py"),
    "rouge-tokens": Scorer(quoted=False, source="language/llama2-70b/evaluate-accuracy.py"),
}


@dataclass(frozen=True)
class _Answers:
    """The first answer to each sample, in the order of the log: index in the dataset, token ids."""

    indices: list[int]
    tokens: list[npt.NDArray[np.int32]]

    @property
    def token_count(self) -> int:
        return sum(map(len, self.tokens))


def score_run(folder: Path, *, nltk_data: str | None = None, workers: int | None = None) -> AccuracyRecord:
    """Score the accuracy run in `folder`; write accuracy.txt and accuracy.json there and return the record.

    `nltk_data` is where the sentence model lies, nltk's own folders without it. Raises RunFailed when the folder holds
    no accuracy run, its log was changed, answers are missing, or rouge-score disagrees; DatasetError, ModelError and
    InstallError when what scoring needs is not there.
    """
    run = read_record(folder / RUN_FILE, RunRecord)
    log = folder / ACCURACY_LOG
    if run.settings.mode is not Mode.ACCURACY:
        raise RunFailed(f"{folder} holds no accuracy run", cause=f"its mode is {run.settings.mode}")
    digest = sha256_of(log) if log.exists() else ""
    if digest != run.files[ACCURACY_LOG]:
        raise RunFailed(f"{log} is not the log that the run wrote", cause="its SHA-256 differs from that in run.json",
                        remedy="remove the run's folder and run it again")
    with step(f"scoring the {run.settings.scenario} accuracy run"):
        begin = time.monotonic()
        sentences = Sentences.named(run.settings.dataset.sentences, nltk_data)
        answers = _answers(log, run.settings.samples)
        pairs = _pairs(run.settings, answers, sentences, digest, workers)
        values = _values(pairs, answers)
        record = AccuracyRecord(
            notice=run.notice, scores=_scores(run.settings.terms, values, len(answers.indices)),
            values={key: float(value) for key, value in values.items()}, samples=len(answers.indices),
            samples_expected=run.settings.samples, tokens=answers.token_count, scorer=_scorer(pairs),
            verified=pairs.verified, sentences=sentences.name, sentences_sha256=sentences.sha256, log_sha256=digest,
            duration_s=time.monotonic() - begin,
        )
        write_text(folder / ACCURACY_TEXT, accuracy_text(values, scorer_of(run.settings.terms)))
        write_record(folder / ACCURACY_FILE, record)
    return record


def scorer_of(terms: Terms) -> Scorer:
    """Return the scorer of a benchmark. Raises UsageError where it is not built yet."""
    if terms.scorer not in SCORERS:
        raise UsageError(f"the accuracy of {terms.benchmark} cannot be scored",
                         cause=f"its scorer {terms.scorer!r} is not built yet")
    return SCORERS[terms.scorer]


def accuracy_text(values: dict[str, float | int], scorer: Scorer) -> str:
    """Return what the reference script prints of `values`; the checker finds the numbers in it by their labels."""
    shown = {key: f"{value}" if scorer.quoted and key in TYPES else value for key, value in values.items()}
    return f"\nResults\n\n{shown}\n"


def _answers(log: Path, expected: int) -> _Answers:
    first: dict[int, npt.NDArray[np.int32]] = {}
    for index, tokens, _ in read_accuracy_log(log):
        first.setdefault(index, tokens)
    if len(first) != expected or not all(0 <= index < expected for index in first):
        raise RunFailed(f"{log} does not cover the dataset", cause=f"{len(first)} of {expected} samples are answered",
                        remedy="run the accuracy run again")
    return _Answers(list(first), list(first.values()))


def _pairs(settings: RunSettings, answers: _Answers, sentences: Sentences, seed: str,
           workers: int | None) -> PairScores:
    require_tokenizer(settings)
    references = references_of(settings.dataset, answers.indices)
    predictions = Detokenizer(Path(settings.model.path)).decode([ids.tolist() for ids in answers.tokens])
    return score_pairs(predictions, references, sentences, seed=seed, workers=workers)


def _values(pairs: PairScores, answers: _Answers) -> dict[str, float | int]:
    """Return the numbers of accuracy.txt by label: plain Python floats and ints, rounded as the references round."""
    count = len(pairs.lengths)
    values: dict[str, float | int] = {
        type_: round(float(np.mean(pairs.fmeasures[type_])) * 100, 4) for type_ in TYPES
    }
    values["gen_len"] = sum(pairs.lengths)
    values["gen_num"] = count
    values["gen_tok_len"] = answers.token_count
    values["tokens_per_sample"] = round(answers.token_count / count, 1)
    return values


def _scorer(pairs: PairScores) -> str:
    version = metadata.version("rouge-score")
    return f"cm4vllm {__version__}, the same to the last bit as rouge-score {version} on {pairs.verified} samples drawn"


def require_tokenizer(settings: RunSettings) -> None:
    """Refuse to decode with another tokenizer than the one that the prompts were made with."""
    path, expected = Path(settings.model.path) / "tokenizer.json", settings.dataset.tokenizer_sha256
    if expected and path.exists() and sha256_of(path) != expected:
        raise ModelError(f"{path} is not the tokenizer of the dataset {settings.dataset.name}",
                         cause="its SHA-256 differs from that in the dataset's record",
                         remedy="use the dataset that belongs to the model, or make it again")


def references_of(dataset: DatasetRecord, indices: Sequence[int]) -> list[str]:
    """Return the references of these samples. Raises DatasetError when the file is not the one of the record."""
    path = Path(dataset.path)
    rows = rows_of(path)
    if sha256_of(path) != dataset.sha256:
        raise DatasetError(f"{path} is not the dataset of the run", cause="its SHA-256 differs from that in run.json",
                           remedy="run the accuracy run again")
    return [str(rows[index]["output"]) for index in indices]


def _scores(terms: Terms, values: dict[str, float | int], samples: int) -> list[Score]:
    return [_score(target, float(values.get(target.label, math.nan)), samples == terms.samples)
            for target in terms.targets]


def _score(target: AccuracyTarget, value: float, whole: bool) -> Score:
    return Score(metric=target.metric, label=target.label, value=value, lower=target.lower, upper=target.upper,
                 met=target.met(value, whole=whole))
