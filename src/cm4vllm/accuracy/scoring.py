"""The accuracy of one run: its log scored against the dataset, as accuracy.txt and accuracy.json."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cm4vllm import SIMULATED_NOTICE, __version__
from cm4vllm.accuracy.graders.catalogue import GraderRecord, grader_lacks
from cm4vllm.accuracy.metric_families import (
    Samples,
    Scored,
    parts_of_deepseek,
    parts_of_gpt_oss,
    product_categories,
    rouge_and_exact_match,
    rouge_gsm8k_and_mbxp,
    rouge_of_all,
    word_errors,
)
from cm4vllm.accuracy.product_catalogue import catalogue_text
from cm4vllm.accuracy.rouge import TYPES
from cm4vllm.accuracy.sentences import NO_SENTENCES, Sentences
from cm4vllm.assets.samples.published_formats import recorded_rows
from cm4vllm.assets.tokenizer_file import Detokenizer
from cm4vllm.common.errors import ModelError, RunFailed, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.folders.owned_folders import write_result_file
from cm4vllm.common.progress import step
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.accuracy import ACCURACY_FILE, ACCURACY_TEXT, NOT_SCORED, AccuracyRecord, Score
from cm4vllm.records.assets import DatasetRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_accuracy_log, read_label_log, read_text_log
from cm4vllm.records.run import RUN_FILE, RunRecord, RunSettings
from cm4vllm.rules import Logged, Mode, Terms


@dataclass(frozen=True)
class Scorer:
    """The scores that a benchmark's reference script computes, and the form in which it writes them.

    `compute` is the family of metrics. `quoted` says that ROUGE stands in accuracy.txt as text ('38.7792'), which the
    checkers before round v5.1 do not read. `source` is the reference script. `graders` name those that each metric
    takes, by its label. `rouge` are the types of ROUGE that are computed: without one no sentences are split.
    `special_tokens` says that an answer's are a part of its text, `normalises` that whisper's normaliser takes the
    texts. `written` gives the script's own line where it prints no dictionary.
    """

    compute: Callable[[Samples], Scored]
    quoted: bool
    source: str
    graders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rouge: tuple[str, ...] = TYPES
    special_tokens: bool = False
    normalises: bool = False
    written: Callable[[Mapping[str, float | int]], str] | None = None


#: The scorers by the name that the rules have for them.
SCORERS = {
    "rouge": Scorer(compute=rouge_of_all, quoted=True, source="language/llama3.1-8b/evaluation.py"),
    "rouge-tokens": Scorer(compute=rouge_of_all, quoted=False, source="language/llama2-70b/evaluate-accuracy.py"),
    "rouge-exact-match": Scorer(
        compute=rouge_and_exact_match,
        quoted=False,
        rouge=("rougeL",),
        source="language/llama3.1-405b/evaluate-accuracy.py",
    ),
    "rouge-gsm8k-mbxp": Scorer(
        compute=rouge_gsm8k_and_mbxp,
        quoted=False,
        source="language/mixtral-8x7b/evaluate-accuracy.py",
        graders={"mbxp": ("mbxp",)},
    ),
    "deepseek-r1": Scorer(
        compute=parts_of_deepseek,
        quoted=False,
        rouge=(),
        source="language/deepseek-r1/eval_accuracy.py",
        graders={"math500": ("math",), "livecodebench": ("livecodebench",), "exact_match": ("math", "livecodebench")},
    ),
    "gpt-oss": Scorer(
        compute=parts_of_gpt_oss,
        quoted=False,
        rouge=(),
        special_tokens=True,
        source="language/gpt-oss-120b/eval_mlperf_accuracy.py",
        graders={"livecodebench": ("livecodebench_v6",), "exact_match": ("livecodebench_v6",)},
    ),
    "word-error-rate": Scorer(
        compute=word_errors,
        quoted=False,
        rouge=(),
        normalises=True,
        written=lambda values: f"Word Error Rate: {values['wer']}%, accuracy={values['accuracy']}%\n",
        source="speech2text/accuracy_eval.py",
    ),
    "product-catalogue": Scorer(
        compute=product_categories,
        quoted=False,
        rouge=(),
        written=catalogue_text,
        source="multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl/evaluation.py",
    ),
}

#: The reason for a metric that has no samples in the run.
_NO_SAMPLES = "none of the run's samples is scored by it"
#: The reason for a metric whose grader could run, but was not made ready.
_NOT_READY = "its grader was not made ready (get,mlperf,grader)"


@dataclass(frozen=True)
class _Answers:
    """The first answer to each sample, in the order of the log: index in the dataset, and token ids or text."""

    indices: list[int]
    answers: list[npt.NDArray[np.int32]] | list[str]
    token_count: int


def score_run(
    folder: Path,
    *,
    nltk_data: str | None = None,
    workers: int | None = None,
    graders: Sequence[GraderRecord] = (),
    speech_packages: str = "",
) -> AccuracyRecord:
    """Score the accuracy run in `folder`; write accuracy.txt and accuracy.json there and return the record.

    `nltk_data` is where the sentence model lies, nltk's own folders without it. `graders` are those that are ready:
    what another would judge has no score. `speech_packages` is the folder of whisper's normaliser. Raises RunFailed
    when the folder holds no accuracy run, its log was changed, or answers are missing; UsageError for the answers of a
    simulated server; DatasetError, ModelError and InstallError when what scoring needs is not installed.
    """
    run = read_record(folder / RUN_FILE, RunRecord)
    digest = _log_digest(folder, run)
    with step(f"scoring the {run.settings.scenario} accuracy run") as shown:
        begin = time.monotonic()
        terms = run.settings.terms
        scorer = scorer_of(terms)
        sentences = Sentences.by_name(run.settings.dataset.sentences, nltk_data) if scorer.rouge else NO_SENTENCES
        answers = _answers(folder / ACCURACY_LOG, run)
        ready = {grader.name: grader for grader in graders}
        texts, rows = _texts(run.settings, answers)
        packages = Path(speech_packages) if speech_packages else None
        scored = scorer.compute(Samples(texts, rows, sentences, workers, ready, packages, shown.update))
        values = _values(scored, answers)
        unscored = _reasons_unscored(terms, values, ready)
        write_result_file(folder, ACCURACY_TEXT, accuracy_text(values, scorer, unscored))
        record = AccuracyRecord(
            notice=run.notice,
            scores=[
                Score(
                    metric=target.metric,
                    label=target.label,
                    value=float(values[target.label]),
                    lower=target.lower,
                    upper=target.upper,
                    met=target.met(float(values[target.label]), whole=len(answers.indices) == terms.samples),
                )
                for target in terms.targets
                if target.label in values
            ],
            unscored=unscored,
            values={key: float(value) for key, value in values.items()},
            samples=len(answers.indices),
            samples_expected=run.settings.samples,
            tokens=answers.token_count,
            scorer=_scorer(scored, ready, scorer),
            sentences=sentences.name,
            sentences_sha256=sentences.sha256,
            log_sha256=digest,
            duration_s=time.monotonic() - begin,
            files={ACCURACY_TEXT: sha256_of(folder / ACCURACY_TEXT)},
        )
        write_record(folder / ACCURACY_FILE, record)
    return record


def _log_digest(folder: Path, run: RunRecord) -> str:
    """Return the SHA-256 of the log of an accuracy run that can be scored. Raises RunFailed, UsageError."""
    if run.settings.mode is not Mode.ACCURACY:
        raise RunFailed(f"{folder} holds no accuracy run", cause=f"its mode is {run.settings.mode}")
    if run.settings.server.simulated is not None:
        raise UsageError(
            f"the accuracy run in {folder} is not scored",
            cause=f"{SIMULATED_NOTICE}: the answers of a simulated server mean nothing",
            remedy="measure the model itself, without --rehearse",
        )
    log = folder / ACCURACY_LOG
    digest = sha256_of(log) if log.is_file() else ""
    if digest != run.files[ACCURACY_LOG]:
        raise RunFailed(
            f"{log} is not the log that the run wrote",
            cause="its SHA-256 differs from that in run.json",
            remedy="remove the run's folder and run it again",
        )
    return digest


def require_scorable(settings: RunSettings, nltk_data: str | None = None) -> None:
    """Raise before an accuracy run what scoring it would raise: ModelError, InstallError, UsageError."""
    if settings.mode is Mode.ACCURACY:
        require_tokenizer(settings)
        if scorer_of(settings.terms).rouge and settings.server.simulated is None:
            Sentences.by_name(settings.dataset.sentences, nltk_data)


def scorer_of(terms: Terms) -> Scorer:
    """Return the scorer of a benchmark. Raises UsageError where it is not built yet."""
    if terms.scorer not in SCORERS:
        raise UsageError(
            f"the accuracy of {terms.benchmark} cannot be scored",
            cause=f"its scorer {terms.scorer!r} is not implemented",
        )
    return SCORERS[terms.scorer]


def accuracy_text(values: dict[str, float | int], scorer: Scorer, unscored: Mapping[str, str] | None = None) -> str:
    """Return the reference script's line for `values`; the checker finds the numbers in it by their labels.

    A line for each metric in `unscored` says why it has no number.
    """
    if scorer.written is not None:
        return scorer.written(values)
    shown = {key: f"{value}" if scorer.quoted and key in TYPES else value for key, value in values.items()}
    without = "".join(f"{NOT_SCORED}{metric}: {why}\n" for metric, why in (unscored or {}).items())
    return f"\nResults\n\n{shown}\n{without}"


def _answers(log: Path, run: RunRecord) -> _Answers:
    """Return the answers of an accuracy log in the order of the samples.

    Raises RunFailed for one that is missing or twice there.
    """
    expected, terms = run.settings.samples, run.settings.terms
    first: dict[int, tuple[Any, int]] = {}
    readers: Mapping[Logged, Callable[[], Iterator[tuple[int, Any, int]]]] = {
        Logged.TOKENS: lambda: read_accuracy_log(log),
        Logged.TEXT: lambda: read_text_log(log),
        Logged.LABELS: lambda: read_label_log(log, terms.labels),
    }
    for index, answer, count in readers[terms.logged]():
        first.setdefault(index, (answer, count))
    if len(first) != expected or not all(0 <= index < expected for index in first):
        raise RunFailed(
            f"{log} does not cover the dataset",
            cause=f"{len(first)} of {expected} samples are answered",
            remedy="run the accuracy run again",
        )
    # Without latencies of tokens the log has no counts.
    count = sum(count for _, count in first.values()) if terms.token_latencies else run.client.completion_tokens
    return _Answers(list(first), [answer for answer, _ in first.values()], count)


def _texts(settings: RunSettings, answers: _Answers) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the text of each answer, and the row of its sample."""
    require_tokenizer(settings)
    rows = rows_of_samples(settings.dataset, answers.indices)
    terms = settings.terms
    if terms.logged is not Logged.TOKENS:
        return [str(answer) for answer in answers.answers], _readable(rows, terms.labels) if terms.labels else rows
    ids = [answer.tolist() for answer in answers.answers if not isinstance(answer, str)]
    return Detokenizer(Path(settings.model.path)).decode(ids, special_tokens=scorer_of(terms).special_tokens), rows


def texts_of_labels(
    data: Sequence[bytes], rows: Sequence[Mapping[str, Any]], labels: str
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the texts of logged int64 labels, and the rows of their samples with references of the same characters."""
    texts = ["".join(labels[number] for number in memoryview(answer).cast("q")) for answer in data]
    return texts, _readable(rows, labels)


def _readable(rows: Sequence[Mapping[str, Any]], labels: str) -> list[dict[str, Any]]:
    """Return the rows; their references lose the characters that no answer can have, as in the official script."""
    known = set(labels)
    return [{**row, "output": "".join(filter(known.__contains__, str(row["output"])))} for row in rows]


def _values(scored: Scored, answers: _Answers) -> dict[str, float | int]:
    """Return the numbers of accuracy.txt by label: plain Python floats and ints, rounded as the references round."""
    count = len(answers.indices)
    values: dict[str, float | int] = dict(scored.values)
    if scored.characters is not None:
        values["gen_len"] = scored.characters
    values["gen_num"] = count
    values["gen_tok_len"] = answers.token_count
    values["tokens_per_sample"] = round(answers.token_count / count, 1)
    return values


def _scorer(scored: Scored, graders: Mapping[str, GraderRecord], scorer: Scorer) -> str:
    """Return in words what computed the scores: versions, verified samples, graders."""
    words = [f"cm4vllm {__version__}"]
    if any(label in TYPES for label in scored.values):
        words.append(f"rouge-score {metadata.version('rouge-score')}")
    first_used_for = {
        name: label
        for label, names in reversed(list(scorer.graders.items()))
        if label in scored.values
        for name in names
        if name in graders
    }
    for name, label in first_used_for.items():
        commits = ", ".join(f"{repository} {commit[:8]}" for repository, commit in graders[name].commits.items())
        words.append(f"{label} by {graders[name].script} ({commits})")
    return ", ".join(words)


def graders_of(scorer: Scorer, problems: str = "", *, here: bool = True) -> tuple[str, ...]:
    """Return the graders that a scorer uses and that can run: on this machine, without `here` on another one.

    `problems` is the folder of tests that the user gives.
    """
    names = dict.fromkeys(name for names in scorer.graders.values() for name in names)
    return tuple(name for name in names if not grader_lacks(name, problems, here=here))


def lacks_of(scorer: Scorer, problems: str = "", *, here: bool = True) -> dict[str, tuple[str, ...]]:
    """Return the metrics, by their labels, that cannot be scored, each with all reasons: see `graders_of`."""
    lacks = {name: grader_lacks(name, problems, here=here) for names in scorer.graders.values() for name in names}
    return {
        label: tuple(dict.fromkeys(reason for name in names for reason in lacks[name]))
        for label, names in scorer.graders.items()
        if any(lacks[name] for name in names)
    }


def require_tokenizer(settings: RunSettings) -> None:
    """Refuse to decode with another tokenizer than the one that the prompts were made with."""
    path, expected = Path(settings.model.path) / "tokenizer.json", settings.dataset.tokenizer_sha256
    if expected and path.is_file() and sha256_of(path) != expected:
        raise ModelError(
            f"{path} is not the tokenizer of the dataset {settings.dataset.name}",
            cause="its SHA-256 differs from that in the dataset's record",
            remedy="use the dataset that belongs to the model, or make it again",
        )


def rows_of_samples(dataset: DatasetRecord, indices: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return the rows of `indices`, or all rows. Raises DatasetError if the file is not the recorded one."""
    rows = recorded_rows(dataset, "run the accuracy run again")
    return rows if indices is None else [rows[index] for index in indices]


def _reasons_unscored(
    terms: Terms, values: dict[str, float | int], ready: Mapping[str, GraderRecord]
) -> dict[str, str]:
    """Return the metrics without a score, each with the reason."""
    lacks = {
        label: "; ".join(dict.fromkeys(reason for name in lacking for reason in grader_lacks(name) or (_NOT_READY,)))
        for label, names in scorer_of(terms).graders.items()
        if (lacking := [name for name in names if name not in ready])
    }
    return {
        target.metric: lacks.get(target.label, _NO_SAMPLES) for target in terms.targets if target.label not in values
    }
