"""The choice of a dataset, and the requirements that a file in a published format has to meet to be it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cm4vllm.assets.samples.audio_dataset import check_clips
from cm4vllm.assets.samples.picture_dataset import check_catalogue
from cm4vllm.assets.samples.published_formats import COLUMNS, read_published, require_samples
from cm4vllm.common import input_types
from cm4vllm.common.errors import DatasetError
from cm4vllm.common.settings import Key, Settings
from cm4vllm.rules import Audit, BenchmarkTerms, Column, Media, audit, default_round


class DatasetSettings(Settings, frozen=True, kw_only=True):
    """Choice of the dataset: `source` is tiny, articles, path or mlcommons; `benchmark` names it and its size.

    Without a source it is that of the stand-in for the stand-in and for random weights, the articles for SmolLM2 of its
    package, and the benchmark's own for any other.
    `calibration` asks for the benchmark's calibration set, whose size is not prescribed, `performance` for the dataset
    that its performance runs have of their own, whose answers are not compared with anything; `test` names the
    compliance test whose own dataset is wanted. Pictures are read with Pillow, in the folder `vision_packages`.
    """

    source: Annotated[str, Key("CM_DATASET_SOURCE_KIND")] = ""
    location: Annotated[str, Key("CM_DATASET_LOCATION")] = ""
    round: input_types.Round = default_round()
    benchmark: input_types.Benchmark = "llama3.1-8b"
    model_record: input_types.ModelRecordPath = ""
    calibration: Annotated[bool, Key("CM_DATASET_CALIBRATION")] = False
    performance: Annotated[bool, Key("CM_DATASET_PERFORMANCE")] = False
    vision_packages: input_types.VisionPackages = ""
    test: Annotated[str, Key("CM_DATASET_TEST")] = ""

    @property
    def kind(self) -> str:
        """The key of the dataset among the catalogue's for a benchmark; with _path, the flag that gives its file."""
        if self.calibration:
            return "calibration"
        return "performance_dataset" if self.performance else "compliance_dataset" if self.test else "dataset"


@dataclass(frozen=True)
class Requirements:
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
    def of(cls, settings: DatasetSettings, benchmark: BenchmarkTerms) -> Requirements:
        """Return the requirements of the dataset that the settings ask for: a file of the user's has any size."""
        if settings.calibration:
            return cls()
        if settings.test:
            return cls.compliance(audit(settings.test, settings.benchmark), benchmark)
        whole = settings.source != "path"
        return cls.performance(benchmark, whole) if settings.performance else cls.evaluation(benchmark, whole)

    @classmethod
    def evaluation(cls, benchmark: BenchmarkTerms, whole: bool) -> Requirements:
        """Return the requirements of a dataset; `whole` asks for the benchmark's number of samples, as results do."""
        samples = benchmark.samples if whole else None
        return cls(samples, True, benchmark.columns, benchmark.longest_media_s, benchmark.media is Media.IMAGE)

    @classmethod
    def performance(cls, benchmark: BenchmarkTerms, whole: bool) -> Requirements:
        """Return the requirements of the dataset that performance runs have of their own."""
        return cls(benchmark.performance_samples if whole else None)

    @classmethod
    def compliance(cls, test: Audit, benchmark: BenchmarkTerms) -> Requirements:
        """Return the requirements of the dataset that a compliance test has of its own."""
        columns = {
            name: Column(values=values, in_part=name in benchmark.columns and benchmark.columns[name].in_part)
            for name, values in test.own_dataset.items()
        }
        return cls(test.samples, True, columns)


def check_file(path: Path, required: Requirements) -> None:
    """Raise DatasetError for a file, or a folder of pictures, that does not meet the requirements."""
    if required.clips_s is not None:
        check_clips(path, required.samples, required.clips_s)
    elif required.pictures:
        check_catalogue(path, required.samples)
    else:
        checked_rows(path, required)


def checked_rows(path: Path, required: Requirements) -> list[dict[str, Any]]:
    """Return the rows of a file in a published format. Raises DatasetError where it does not meet the requirements."""
    rows = read_published(path)
    columns = required.columns
    needed = (*COLUMNS, *columns) if required.answers else ("tok_input",)
    _check_columns(path, set(rows[0]), needed)
    require_samples(path, len(rows), required.samples)
    for number, row in enumerate(rows):
        _check_row(path, number, row, needed)
        _check_values(path, number, row, columns)
    return rows


def _check_columns(path: Path, present: set[str], needed: Sequence[str]) -> None:
    if missing := [name for name in needed if name not in present]:
        raise DatasetError(
            f"{path} lacks {', '.join(missing)}",
            cause=f"it has {', '.join(sorted(present)) or 'nothing'}",
            remedy=f"each record has {', '.join(needed)}, as in cnn_eval.json",
        )


def _check_row(path: Path, number: int, row: Mapping[str, Any], needed: Sequence[str]) -> None:
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


def _check_values(path: Path, number: int, row: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
    for name, column in columns.items():
        if not column.takes(row[name]):
            raise DatasetError(
                f"{path}: sample {number} has {row[name]!r} as its {name}",
                cause=f"the benchmark's samples have {', '.join(column.values)}",
                remedy="copy or download the dataset again",
            )
