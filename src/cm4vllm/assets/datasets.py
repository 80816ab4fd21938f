"""Datasets: the harbour log of the tiny model, a benchmark's own from MLCommons, or a file in its published format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec

from cm4vllm.assets import mlcommons, tone_speech
from cm4vllm.assets.audio_dataset import audio_rows, check_clips, write_clips
from cm4vllm.assets.catalogue import CatalogueDataset, catalogue
from cm4vllm.assets.checkpoint import read_checkpoint
from cm4vllm.assets.media_files import most_prompt_tokens
from cm4vllm.assets.picture_dataset import catalogue_rows, check_catalogue, write_products
from cm4vllm.assets.published_formats import COLUMNS, read_published, rows_of
from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.assets.tiny_dataset import EVALUATION_SEED, Example, Split, examples, reference_of, text_of
from cm4vllm.common import input_types
from cm4vllm.common.errors import DatasetError, DownloadError, ModelError, UsageError
from cm4vllm.common.files import given_path, require_space, sha256_of, write_text
from cm4vllm.common.progress import step
from cm4vllm.common.records import Record, read_record, write_record
from cm4vllm.common.settings import Key
from cm4vllm.rules import Audit, BenchmarkTerms, Column, Media, accuracy_targets, audit, benchmark_terms, require_text

__all__ = [
    "CALIBRATION_SAMPLES",
    "COLUMNS",
    "DATASET_FILE",
    "DatasetSettings",
    "Wanted",
    "check",
    "check_file",
    "provide",
    "reads_pictures",
    "rows_of",
]

#: The name of the record's file.
DATASET_FILE = "dataset.json"
_TINY_NAME = "harbour-log"
_TONES_NAME, _PRODUCTS_NAME = "tones", "products"
#: The tiny model's calibration set: prompts that it is neither evaluated on nor, but by chance, was trained on.
CALIBRATION_SEED = 1717
CALIBRATION_SAMPLES = 128
#: The stand-in of a dataset that performance runs have of their own.
PERFORMANCE_SEED = 6396
_SPACE_BYTES = 128 * 2**20
_CHUNK = 512


class DatasetSettings(Record, frozen=True, kw_only=True):
    """Choice of the dataset: `source` is tiny, path or mlcommons; `benchmark` names it and its number of samples.

    Without a source it is that of the stand-in for the stand-in and for random weights alone, and the benchmark's own
    for any other.
    `calibration` asks for the benchmark's calibration set, whose size is not prescribed, `performance` for the dataset
    that its performance runs have of their own, whose answers are not compared with anything; `test` names the
    compliance test whose own dataset is wanted. Pictures are read with Pillow, in the folder `vision_packages`.
    """

    source: Annotated[str, Key("CM_DATASET_SOURCE_KIND")] = ""
    location: Annotated[str, Key("CM_DATASET_LOCATION")] = ""
    round: input_types.Round = "v6.1"
    benchmark: input_types.Benchmark = "llama3.1-8b"
    model_record: input_types.ModelRecordPath = ""
    calibration: Annotated[bool, Key("CM_DATASET_CALIBRATION")] = False
    performance: Annotated[bool, Key("CM_DATASET_PERFORMANCE")] = False
    vision_packages: input_types.VisionPackages = ""
    test: Annotated[str, Key("CM_DATASET_TEST")] = ""


def reads_pictures(settings: DatasetSettings) -> bool:
    """Say whether pictures of the user's own are read, which takes Pillow. Raises UsageError."""
    return settings.source == "path" and benchmark_terms(settings.round, settings.benchmark).media is Media.IMAGE


def provide(settings: DatasetSettings, folder: Path) -> DatasetRecord:
    """Have the dataset and write its record to `folder`. Raises DatasetError, ModelError, DownloadError, DiskFull."""
    benchmark = benchmark_terms(settings.round, settings.benchmark)
    require_text(benchmark)
    if settings.calibration and not catalogue().benchmark(settings.benchmark).calibration:
        raise DatasetError(
            f"{settings.benchmark} has no calibration set",
            cause="none is published for it",
            remedy="quantise by a scheme that needs none: --quantize=fp8-dynamic of run-mlperf,inference",
        )
    model = read_record(Path(settings.model_record), ModelRecord) if settings.model_record else None
    source = settings.source or ("tiny" if model is None or model.is_stand_in or model.is_dummy else "mlcommons")
    if source == "tiny":
        if model is None:
            raise DatasetError(
                "the tiny dataset needs a model's tokenizer",
                remedy="make it: cm run script "
                "--tags=get,ml-model,_tiny; then give its model.json: --env.CM_ML_MODEL_RECORD=<file>",
            )
        record = _tiny(model, settings, benchmark, folder)
    elif source == "path":
        path = given_path(settings.location)
        record = _converted(path, f"local file {path.name}", settings, benchmark, model, folder)
    elif source == "mlcommons":
        record = _mlcommons(settings, benchmark, model, folder)
    else:
        raise UsageError(f"unknown dataset source {source!r}", remedy="known: tiny, path, mlcommons")
    write_record(folder / DATASET_FILE, record)
    return record


def _tiny(model: ModelRecord, settings: DatasetSettings, benchmark: BenchmarkTerms, folder: Path) -> DatasetRecord:
    if benchmark.media is Media.AUDIO:
        return _clips(benchmark, folder)
    if benchmark.media is Media.IMAGE:
        return _products(benchmark, Path(model.path), folder)
    tokenizer_json = Path(model.path) / "tokenizer.json"
    require_space(folder, _SPACE_BYTES, "the tiny dataset")
    split, seed, count, name = Split.EVALUATION, EVALUATION_SEED, benchmark.samples, _TINY_NAME
    columns: Mapping[str, Column] = benchmark.columns
    if settings.calibration:
        # None of the evaluation's prompts: the sets are split by the text itself.
        split, seed, count, name = Split.TRAINING, CALIBRATION_SEED, CALIBRATION_SAMPLES, f"{_TINY_NAME}-calibration"
    elif settings.performance:
        seed, count, name = PERFORMANCE_SEED, benchmark.performance_samples, f"{_TINY_NAME}-performance"
    elif settings.test:
        wanted = _wanted(settings, benchmark)
        count, columns, name = wanted.samples or 0, wanted.columns, f"{_TINY_NAME}-{settings.test.lower()}"
    path = folder / f"{name}.json"
    with step(f"making the dataset {name} of {count} samples"):
        rows = list(_tokenised(examples(split, count, seed), columns, tokenizer_json))
        write_text(path, json.dumps(rows, separators=(",", ":")) + "\n")
    return DatasetRecord(
        name=name,
        path=str(path),
        source="made here from a seed (cm4vllm.assets.tiny_dataset)",
        sha256=sha256_of(path),
        samples=len(rows),
        max_input_tokens=max(len(row["tok_input"]) for row in rows),
        tokenizer_sha256=sha256_of(tokenizer_json),
        sentences="punkt-untrained",
        recipe={
            "seed": str(seed),
            "split": split,
            **({} if model.is_dummy or settings.performance else _length_factor(rows, benchmark, tokenizer_json)),
        },
    )


def _clips(benchmark: BenchmarkTerms, folder: Path) -> DatasetRecord:
    """Make the clips of the tiny whisper, as many as the benchmark has."""
    require_space(folder, _SPACE_BYTES + benchmark.samples * 100_000, "the tiny dataset of clips")
    with step(f"making the dataset {_TONES_NAME} of {benchmark.samples} clips"):
        texts = tone_speech.sentences(benchmark.samples, EVALUATION_SEED, evaluation=True)
        rows = write_clips(folder, texts, lambda text: tone_speech.clip(text).tobytes())
    return _of_media(
        rows,
        folder,
        folder / f"{_TONES_NAME}.json",
        source="made here from a seed (cm4vllm.assets.tone_speech)",
        recipe={"seed": str(EVALUATION_SEED), "split": str(Split.EVALUATION)},
    )


def _products(benchmark: BenchmarkTerms, model: Path, folder: Path) -> DatasetRecord:
    """Make the products of the tiny vision-language model, as many as the benchmark has."""
    require_space(folder, _SPACE_BYTES, "the tiny dataset of products")
    with step(f"making the dataset {_PRODUCTS_NAME} of {benchmark.samples} samples"):
        rows = write_products(folder, benchmark.samples, EVALUATION_SEED, model)
    record = _of_media(
        rows,
        folder,
        folder / f"{_PRODUCTS_NAME}.json",
        source="made here from a seed (cm4vllm.assets.product_pictures)",
        recipe={"seed": str(EVALUATION_SEED), "split": str(Split.EVALUATION)},
    )
    return msgspec.structs.replace(record, tokenizer_sha256=sha256_of(model / "tokenizer.json"))


def _of_media(
    rows: list[dict[str, Any]], files: Path, path: Path, *, source: str, source_sha256: str = "", recipe: dict[str, str]
) -> DatasetRecord:
    """Write the rows of media, whose files lie in the folder `files`, to `path`, and return the dataset's record."""
    write_text(path, json.dumps(rows, separators=(",", ":")) + "\n")
    return DatasetRecord(
        name=path.name.partition(".")[0],
        path=str(path),
        source=source,
        sha256=sha256_of(path),
        source_sha256=source_sha256,
        samples=len(rows),
        max_input_tokens=max(map(most_prompt_tokens, rows)),
        media_folder=str(files),
        recipe=recipe,
    )


def _length_factor(rows: list[dict[str, Any]], benchmark: BenchmarkTerms, tokenizer_json: Path) -> dict[str, str]:
    """Say how long the references are beside the answers of the benchmark's own model, where the rules have those."""
    targets = accuracy_targets(benchmark.round, benchmark.name, benchmark.scenarios[0])
    published = next((target.reference for target in targets if target.metric == "TOKENS_PER_SAMPLE"), None)
    if published is None:
        return {}
    encodings = _tokenizer(tokenizer_json).encode_batch([row["output"] for row in rows], add_special_tokens=False)
    mean = sum(len(encoding.ids) for encoding in encodings) / len(rows)
    return {
        "length_factor": f"{mean / published:.3f}: {mean:.1f} tokens a reference, {published:g} an answer of the "
        "benchmark's own model"
    }


def _mlcommons(
    settings: DatasetSettings, benchmark: BenchmarkTerms, model: ModelRecord | None, folder: Path
) -> DatasetRecord:
    """Take the benchmark's own dataset, or its calibration set, from MLCommons' storage."""
    assets = catalogue().benchmark(settings.benchmark)
    name = assets.dataset
    if settings.calibration or settings.performance:
        name = assets.calibration if settings.calibration else assets.performance_dataset
    elif settings.test:
        name = assets.compliance_dataset
    known = catalogue().dataset(name)
    _require_manifest(name, known)
    try:
        manifest = mlcommons.read_manifest(known.mlcommons)
        wanted = {known.file: known.digest}
        if known.clips:
            wanted |= {name: "" for name in manifest.digests if name.startswith(known.clips)}
        had = mlcommons.download(manifest, mlcommons.downloads_folder(manifest.name), wanted)
    except DownloadError as error:
        kinds = {"calibration": settings.calibration, "performance_dataset": settings.performance}
        kinds |= {"compliance_dataset": bool(settings.test), "dataset": True}
        kind = next(kind for kind, asked in kinds.items() if asked)
        flag, own = f"{kind}_path", Path(known.file).name
        error.what = f"the dataset {name} could not be fetched: {error.what}"
        error.remedy = "\n".join(
            filter(
                None,
                [
                    error.remedy,
                    f"or give the file {known.file} ({known.digest}) of {known.mlcommons}: "
                    f"--{flag}={own} of run-mlperf,inference,\nor _path./folder/{own} among the tags of get,dataset",
                ],
            )
        )
        raise
    record = _converted(had[0], f"MLCommons, {manifest.base}/{known.file}", settings, benchmark, model, folder)
    return msgspec.structs.replace(record, name=name)


def _require_manifest(name: str, known: CatalogueDataset) -> None:
    """Raise DatasetError for a dataset that MLCommons' storage is not known to have."""
    if not known.mlcommons:
        raise DatasetError(
            f"the dataset {name} cannot be downloaded here",
            cause="no manifest of MLCommons' storage is known for it",
            remedy=f"download it from https://huggingface.co/datasets/{known.hub} at {known.revision}, and give its "
            "folder of parquet files by --dataset_path of run-mlperf,inference,",
        )


def _tokenised(made: list[Example], columns: Mapping[str, Column], tokenizer_json: Path) -> Iterator[dict[str, Any]]:
    """Give the rows of a stand-in dataset; the values that a column may hold come in turn."""
    tokenizer, kinds = (
        _tokenizer(tokenizer_json),
        list(product(*(column.values or (text_of(name),) for name, column in columns.items()))),
    )
    for start in range(0, len(made), _CHUNK):
        chunk = made[start : start + _CHUNK]
        encodings = tokenizer.encode_batch([example.input for example in chunk])
        for number, (example, encoding) in enumerate(zip(chunk, encodings, strict=True), start):
            kind = kinds[number % len(kinds)]
            yield {
                "input": example.input,
                "tok_input": encoding.ids,
                "output": reference_of(example, kind[0] if kind else ""),
                **dict(zip(columns, kind, strict=True)),
            }


def _tokenizer(tokenizer_json: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(
            f"{tokenizer_json} is not a tokenizer", cause=str(error), remedy="copy or download the model again"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _converted(
    path: Path,
    source: str,
    settings: DatasetSettings,
    benchmark: BenchmarkTerms,
    model: ModelRecord | None,
    folder: Path,
) -> DatasetRecord:
    """Read a file in a published format, check that it is the whole dataset, and write it in ours."""
    if benchmark.media is Media.AUDIO:
        ours = folder / f"{path.name.partition('.')[0]}.samples.json"
        rows = audio_rows(path, benchmark.samples, benchmark.longest_media_s or 0)
        return _of_media(rows, path.parent, ours, source=source, source_sha256=sha256_of(path), recipe={})
    if benchmark.media is Media.IMAGE:
        return _catalogue(path, source, settings, benchmark, model, folder)
    rows = _checked(path, _wanted(settings, benchmark), _vocabulary(model))
    require_space(folder, 2 * path.stat().st_size + _SPACE_BYTES, f"the dataset {path.name}")
    ours = folder / f"{path.name.partition('.')[0]}.samples.json"
    write_text(ours, json.dumps(rows, separators=(",", ":")) + "\n")
    return DatasetRecord(
        name=path.name.removesuffix(".gz").rpartition(".")[0],
        path=str(ours),
        source=source,
        sha256=sha256_of(ours),
        source_sha256=sha256_of(path),
        samples=len(rows),
        max_input_tokens=max(len(row["tok_input"]) for row in rows),
    )


def _catalogue(
    path: Path,
    source: str,
    settings: DatasetSettings,
    benchmark: BenchmarkTerms,
    model: ModelRecord | None,
    folder: Path,
) -> DatasetRecord:
    """Take the product catalogue from a folder of parquet files, with its prompts as `model` counts them."""
    if model is None:
        raise DatasetError(
            "the tokens of prompts with pictures cannot be counted",
            cause="the model whose chat template and picture processor count them is not given",
            remedy="give the record that get,ml-model gives: --model_record of get,dataset",
        )
    files = check_catalogue(path, benchmark.samples)
    require_space(folder, 2 * sum(file.stat().st_size for file in files) + _SPACE_BYTES, f"the dataset {path.name}")
    with step(f"reading {benchmark.samples} products with their pictures"):
        rows = catalogue_rows(path, folder, benchmark.samples, Path(model.path), settings.vision_packages)
    digests = "".join(sha256_of(file) for file in files)
    ours = folder / f"{path.name}.samples.json"
    whole = hashlib.sha256(digests.encode()).hexdigest()
    record = _of_media(rows, folder, ours, source=source, source_sha256=whole, recipe={})
    return msgspec.structs.replace(record, tokenizer_sha256=sha256_of(Path(model.path) / "tokenizer.json"))


def check(settings: DatasetSettings) -> None:
    """Raise what `provide` raises for these settings before it asks any network. Raises DatasetError, UsageError."""
    benchmark = benchmark_terms(settings.round, settings.benchmark)
    require_text(benchmark)
    if settings.source == "path":
        check_file(given_path(settings.location), _wanted(settings, benchmark))
    elif settings.source == "mlcommons":
        name = catalogue().benchmark(settings.benchmark).dataset
        _require_manifest(name, catalogue().dataset(name))


@dataclass(frozen=True)
class Wanted:
    """Requirements of a dataset file: its number of samples (None: any number), and its columns if it has answers.

    `clips_s` are the seconds of a clip at most where its samples are audio. With `pictures` it is a folder of parquet
    files.
    """

    samples: int | None = None
    answers: bool = False
    columns: Mapping[str, Column] = field(default_factory=dict)
    clips_s: float | None = None
    pictures: bool = False

    @classmethod
    def evaluation(cls, benchmark: BenchmarkTerms) -> Wanted:
        pictures = benchmark.media is Media.IMAGE
        return cls(benchmark.samples, True, benchmark.columns, benchmark.longest_media_s, pictures)

    @classmethod
    def performance(cls, benchmark: BenchmarkTerms) -> Wanted:
        """Return the needs of the dataset that performance runs have of their own."""
        return cls(benchmark.performance_samples)

    @classmethod
    def compliance(cls, test: Audit, benchmark: BenchmarkTerms) -> Wanted:
        """Return the needs of the dataset that a compliance test has of its own."""
        in_part = {name: column.in_part for name, column in benchmark.columns.items()}
        columns = {
            name: Column(values=values, in_part=in_part.get(name, False)) for name, values in test.own_dataset.items()
        }
        return cls(test.samples, True, columns)


def _wanted(settings: DatasetSettings, benchmark: BenchmarkTerms) -> Wanted:
    if settings.calibration:
        return Wanted()
    if settings.test:
        return Wanted.compliance(audit(settings.test, settings.benchmark), benchmark)
    return Wanted.performance(benchmark) if settings.performance else Wanted.evaluation(benchmark)


def check_file(path: Path, wanted: Wanted) -> None:
    """Raise DatasetError where `path` cannot be the dataset that is wanted."""
    if wanted.clips_s is not None:
        check_clips(path, wanted.samples or 0, wanted.clips_s)
    elif wanted.pictures:
        check_catalogue(path, wanted.samples or 0)
    else:
        _checked(path, wanted, None)


def _checked(path: Path, wanted: Wanted, vocabulary: int | None) -> list[dict[str, Any]]:
    """Return the rows of a file that has been checked."""
    rows = read_published(path)
    columns = wanted.columns
    needed = (*COLUMNS, *columns) if wanted.answers else ("tok_input",)
    _check_columns(path, set(rows[0]), needed)
    if wanted.samples is not None and len(rows) != wanted.samples:
        raise DatasetError(
            f"{path} has {len(rows)} samples",
            cause=f"the benchmark's dataset has {wanted.samples}",
            remedy="give the whole dataset; --test_query_count shortens a rehearsal",
        )
    for number, row in enumerate(rows):
        _check_row(path, number, row, vocabulary, needed)
        _check_values(path, number, row, columns)
    return rows


def _check_columns(path: Path, present: set[str], needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in present]
    if missing:
        raise DatasetError(
            f"{path} lacks {', '.join(missing)}",
            cause=f"it has {', '.join(sorted(present)) or 'nothing'}",
            remedy=f"each record has {', '.join(needed)}, as in cnn_eval.json",
        )


def _check_row(path: Path, number: int, row: Mapping[str, Any], vocabulary: int | None, needed: Sequence[str]) -> None:
    if not row.keys() >= set(needed):
        _check_columns(path, set(row), needed)
    tokens = row["tok_input"]
    texts = isinstance(row.get("output"), str) or "output" not in needed
    if not texts or not isinstance(tokens, list) or not tokens:
        raise DatasetError(
            f"{path}: sample {number} is not usable",
            cause="its output is no text, or its tok_input no list of token ids",
            remedy="copy or download the dataset again",
        )
    wrong = next((token for token in tokens if type(token) is not int or token < 0), None)
    if wrong is not None:
        raise DatasetError(
            f"{path}: sample {number} has {wrong!r} as a token id", remedy="token ids are integers from 0"
        )
    if vocabulary is not None and max(tokens) >= vocabulary:
        raise DatasetError(
            f"{path}: sample {number} has token id {max(tokens)}",
            cause=f"the model's vocabulary has {vocabulary}: the dataset was tokenised for another model",
            remedy="give the dataset that belongs to the model",
        )


def _check_values(path: Path, number: int, row: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
    for name, column in columns.items():
        if not column.takes(row[name]):
            raise DatasetError(
                f"{path}: sample {number} has {row[name]!r} as its {name}",
                cause=f"the benchmark's samples have {', '.join(column.values)}",
                remedy="copy or download the dataset again",
            )


def _vocabulary(model: ModelRecord | None) -> int | None:
    return read_checkpoint(Path(model.path)).vocabulary if model is not None else None
