"""Datasets: the harbour log of the tiny model, or a file in the published format of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from cm4vllm.assets.checkpoint import read_checkpoint
from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.assets.tiny_dataset import EVALUATION_SEED, Example, Split, examples
from cm4vllm.common.errors import DatasetError, ModelError, UsageError
from cm4vllm.common.files import require_space, sha256_of, write_text
from cm4vllm.common.progress import step
from cm4vllm.common.records import Record, read_record, write_record
from cm4vllm.common.settings import Key
from cm4vllm.rules.benchmarks import BENCHMARKS

__all__ = ["DATASET_FILE", "DatasetSettings", "provide", "rows_of"]

#: The name of the record's file.
DATASET_FILE = "dataset.json"
#: The columns of cnn_eval.json that the reference reads (language/llama3.1-8b/dataset.py and evaluation.py).
COLUMNS = ("input", "tok_input", "output")
_TINY_NAME = "harbour-log"
_SPACE_BYTES = 128 * 2**20
_CHUNK = 512


class DatasetSettings(Record, frozen=True, kw_only=True):
    """Which dataset: `source` is tiny or path; `benchmark` says how many samples it must have."""

    source: Annotated[str, Key("CM_DATASET_SOURCE_KIND")] = "tiny"
    location: Annotated[str, Key("CM_DATASET_LOCATION")] = ""
    benchmark: Annotated[str, Key("CM_MLPERF_MODEL")] = "llama3.1-8b"
    model_record: Annotated[str, Key("CM_ML_MODEL_RECORD")] = ""


def provide(settings: DatasetSettings, folder: Path) -> DatasetRecord:
    """Have the dataset and write its record to `folder`. Raises DatasetError, ModelError, DiskFull."""
    if settings.benchmark not in BENCHMARKS:
        raise UsageError(f"unknown model {settings.benchmark!r}", remedy=f"known: {', '.join(BENCHMARKS)}")
    samples = BENCHMARKS[settings.benchmark].samples
    model = read_record(Path(settings.model_record), ModelRecord) if settings.model_record else None
    if settings.source == "tiny":
        if model is None:
            raise DatasetError("the tiny dataset needs a model's tokenizer", remedy="name the model's model.json with "
                               "--model_record; cm run script --tags=get,ml-model,_tiny makes one")
        record = _tiny(Path(model.path) / "tokenizer.json", samples, folder)
    elif settings.source == "path":
        record = _local(Path(settings.location).expanduser().absolute(), samples, model)
    else:
        raise UsageError(f"unknown dataset source {settings.source!r}", remedy="known: tiny, path")
    write_record(folder / DATASET_FILE, record)
    return record


def _tiny(tokenizer_json: Path, samples: int, folder: Path) -> DatasetRecord:
    require_space(folder, _SPACE_BYTES, "the tiny dataset")
    path = folder / f"{_TINY_NAME}.json"
    with step(f"making the tiny dataset of {samples} samples"):
        rows = list(_tokenised(examples(Split.EVALUATION, samples, EVALUATION_SEED), tokenizer_json))
        write_text(path, json.dumps(rows, separators=(",", ":")) + "\n")
    return DatasetRecord(
        name=_TINY_NAME, path=str(path), source="made here from a seed (cm4vllm.assets.tiny_dataset)",
        sha256=sha256_of(path), samples=len(rows), max_input_tokens=max(len(row["tok_input"]) for row in rows),
        tokenizer_sha256=sha256_of(tokenizer_json), sentences="punkt-untrained",
        recipe={"seed": str(EVALUATION_SEED), "split": Split.EVALUATION},
    )  # fmt: skip


def _tokenised(made: list[Example], tokenizer_json: Path) -> Iterator[dict[str, Any]]:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{tokenizer_json} is not a tokenizer", cause=str(error),
                         remedy="copy or download the model again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for start in range(0, len(made), _CHUNK):
        chunk = made[start : start + _CHUNK]
        for example, encoding in zip(chunk, tokenizer.encode_batch([one.input for one in chunk]), strict=True):
            yield {"input": example.input, "tok_input": encoding.ids, "output": example.output}


def _local(path: Path, samples: int, model: ModelRecord | None) -> DatasetRecord:
    rows = rows_of(path)
    if len(rows) != samples:
        raise DatasetError(f"{path} has {len(rows)} samples", cause=f"the benchmark's dataset has {samples}",
                           remedy="give the whole dataset; --test_query_count shortens a rehearsal")
    vocabulary = _vocabulary(model)
    for number, row in enumerate(rows):
        _check_row(path, number, row, vocabulary)
    return DatasetRecord(
        name=path.stem, path=str(path), source=f"local file {path.name}", sha256=sha256_of(path), samples=len(rows),
        max_input_tokens=max(len(row["tok_input"]) for row in rows),
    )  # fmt: skip


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Read a JSON file as pandas.read_json does: a list of records, or an object of columns by index."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DatasetError(f"there is no dataset {path}", remedy="give a file: --dataset_path=<file>") from error
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} is not a JSON file", cause=str(error),
                           remedy="give the file in the published format, as cnn_eval.json") from error
    rows = _from_columns(path, value) if isinstance(value, dict) else value
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise DatasetError(f"{path} holds no records", cause="neither a list of records nor an object of columns",
                           remedy=f"each record has {', '.join(COLUMNS)}, as in cnn_eval.json")
    return rows


def _from_columns(path: Path, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    _check_columns(path, set(columns))
    chosen = {name: columns[name] for name in COLUMNS}
    values = {name: list(one.values()) if isinstance(one, dict) else one for name, one in chosen.items()}
    if len({len(value) for value in values.values()}) != 1:
        raise DatasetError(f"{path} has columns of different lengths", remedy="copy or download the dataset again")
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _check_columns(path: Path, present: set[str]) -> None:
    missing = [name for name in COLUMNS if name not in present]
    if missing:
        raise DatasetError(f"{path} lacks {', '.join(missing)}",
                           cause=f"it has {', '.join(sorted(present)) or 'nothing'}",
                           remedy=f"each record has {', '.join(COLUMNS)}, as in cnn_eval.json")


def _check_row(path: Path, number: int, row: Mapping[str, Any], vocabulary: int | None) -> None:
    if not row.keys() >= set(COLUMNS):
        _check_columns(path, set(row))
    tokens = row["tok_input"]
    if not isinstance(row["output"], str) or not isinstance(tokens, list) or not tokens:
        raise DatasetError(f"{path}: sample {number} is not usable", cause="its output is no text, or its tok_input no "
                           "list of token ids", remedy="copy or download the dataset again")
    wrong = next((token for token in tokens if type(token) is not int or token < 0), None)
    if wrong is not None:
        raise DatasetError(f"{path}: sample {number} has {wrong!r} as a token id",
                           remedy="token ids are integers from 0")
    if vocabulary is not None and max(tokens) >= vocabulary:
        raise DatasetError(
            f"{path}: sample {number} has token id {max(tokens)}",
            cause=f"the model's vocabulary has {vocabulary}: the dataset was tokenised for another model",
            remedy="give the dataset that belongs to the model")


def _vocabulary(model: ModelRecord | None) -> int | None:
    return read_checkpoint(Path(model.path)).vocabulary if model is not None else None
