"""The catalogue: models and datasets by name, with the source of every fact (catalogue.yaml, digests/)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.records import Record

T = TypeVar("T")

#: MLCommons' MD5 lists of the models' files, as published: digests/<model>.md5.
_DIGESTS = Path(__file__).with_name("digests")
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class CatalogueModel(Record, frozen=True, kw_only=True):
    """A model. `hub` is its id on the Hugging Face hub, `revision` a commit, empty where none is published.

    `mlcommons` is the URL of MLCommons' manifest and `mlcommons_folder` the model's folder in it. `gate` says whose
    consent a download needs, empty for none. `base` names the model that this one was quantised from. `config` holds
    what the fit advisor needs of config.json while the model is not downloaded. `sources` has a key for each fact.
    """

    hub: str
    precision: str
    sources: dict[str, str]
    revision: str = ""
    mlcommons: str = ""
    mlcommons_folder: str = ""
    mlcommons_size: str = ""
    gate: str = ""
    base: str = ""
    note: str = ""
    config: dict[str, Any] = {}


class CatalogueDataset(Record, frozen=True, kw_only=True):
    """A dataset file of one of MLCommons' manifests, with the digest published for it.

    `samples` is None where no count is published. `tokenizer` names the model whose tokens it holds, empty for one of
    media: clips are the files of the manifest whose names begin with `clips`, and `clips_digest` is the digest of their
    lines in it, sorted by name. One without a manifest is published at the Hugging Face hub alone, as `hub` at a
    `revision`.
    """

    sources: dict[str, str]
    mlcommons: str = ""
    file: str = ""
    digest: str = ""
    size: str = ""
    hub: str = ""
    revision: str = ""
    tokenizer: str = ""
    clips: str = ""
    clips_digest: str = ""
    samples: int | None = None


class BenchmarkAssets(Record, frozen=True, kw_only=True):
    """The model and the datasets of a benchmark's reference.

    `performance_dataset` is empty where one serves both, `compliance_dataset` where no test has one of its own,
    `calibration` where none is published. `stand_in` is the variation of get,ml-model that makes its tiny model.
    """

    model: str
    dataset: str
    calibration: str = ""
    performance_dataset: str = ""
    compliance_dataset: str = ""
    stand_in: str = "tiny"


class Catalogue(Record, frozen=True, kw_only=True):
    """Models, datasets and the assets of benchmarks, by name: all of them, or those of one benchmark's file."""

    models: dict[str, CatalogueModel]
    datasets: dict[str, CatalogueDataset]
    benchmarks: dict[str, BenchmarkAssets]

    def model(self, name: str) -> CatalogueModel:
        """Return a model by its name. Raises UsageError."""
        return _one_of(self.models, name, "model")

    def dataset(self, name: str) -> CatalogueDataset:
        """Return a dataset by its name. Raises UsageError."""
        return _one_of(self.datasets, name, "dataset")

    def benchmark(self, name: str) -> BenchmarkAssets:
        """Return the assets of a benchmark's reference. Raises UsageError."""
        return _one_of(self.benchmarks, name, "benchmark")

    def config(self, name: str) -> dict[str, Any]:
        """Return the known part of a model's config.json; of a quantised model, that of its base. Raises UsageError."""
        model = self.model(name)
        return model.config or (self.config(model.base) if model.base else {})


def published_digests(model: str) -> dict[str, str]:
    """Return MLCommons' MD5 of each file of a model by the file's path, empty where MLCommons does not host it."""
    path = _DIGESTS / f"{model}.md5"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {name: f"md5:{digest}" for digest, name in (line.split(maxsplit=1) for line in lines)}


def published_bytes(size: str) -> int:
    """Return a size as the catalogue has it, such as 267MB, in bytes; 0 for an empty one."""
    return round(float(size[:-2]) * _UNITS[size[-2:]]) if size else 0


def _one_of(known: Mapping[str, T], name: str, kind: str) -> T:
    if name not in known:
        raise UsageError(f"the catalogue has no {kind} {name!r}", remedy=nearest(name, known))
    return known[name]
