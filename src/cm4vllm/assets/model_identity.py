"""Check that a model is the benchmark's own (by MLCommons' published digests) or was quantised here from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from cm4vllm.assets.models import MODEL_FILE, check_unchanged
from cm4vllm.common import input_types
from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.common.files import digest_of
from cm4vllm.common.progress import step
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.common.terminal_text import first_of
from cm4vllm.common.units import size_text
from cm4vllm.records.assets import IDENTITY, ModelRecord
from cm4vllm.rules import catalogue, published_digests

#: Files that change what is served although no digest is published for them: further weights, and programs.
_SERVED = ("*.safetensors", "*.py")
#: Files up to this size are read where the answer must be quick.
_SMALL_BYTES = 32 * 2**20


def is_from(benchmark: str, location: str) -> bool:
    """Return True if a name of the catalogue, or a hub id, is that of a benchmark's own model."""
    name = catalogue().benchmark(benchmark).model
    return location in (name, catalogue().model(name).hub)


class IdentityInputs(Settings, frozen=True, kw_only=True):
    """The model that is compared, the benchmark whose model it is to be, and the identified record of its base."""

    model_record: input_types.ModelRecordPath = ""
    benchmark: input_types.Benchmark = "llama3.1-8b"
    base_record: Annotated[str, Key("CM_ML_MODEL_IDENTITY_RECORD")] = ""


def identify(inputs: IdentityInputs, folder: Path) -> ModelRecord:
    """Compare a model with the benchmark's, and write its record to `folder`. Raises UsageError, ModelError."""
    if not inputs.model_record:
        raise UsageError(
            "no model is named", remedy="give --model_record=FILE to verify,ml-model: the file model.json of the model"
        )
    base = read_record(Path(inputs.base_record), ModelRecord) if inputs.base_record else None
    record = with_benchmark_name(read_record(Path(inputs.model_record), ModelRecord), inputs.benchmark, base)
    write_record(folder / MODEL_FILE, record)
    return record


def with_benchmark_name(record: ModelRecord, benchmark: str, base: ModelRecord | None = None) -> ModelRecord:
    """Return the record of a benchmark's own model under the benchmark's name.

    A model that was quantised here is one if it was made from `base`, which was identified before. Raises ModelError.
    """
    check_unchanged(record)
    if record.quantization is not None:
        _require_base(record, benchmark, base)
        made = f"quantised here from {record.quantization.base_model}"
    else:
        made = _comparison(record, benchmark)
    return replace(
        record, name=benchmark, source=f"{record.source}; {made}", recipe={**record.recipe, IDENTITY: benchmark}
    )


def _comparison(record: ModelRecord, benchmark: str) -> str:
    folder, files = Path(record.path), _published_digests(benchmark)
    size = size_text(sum((folder / name).stat().st_size for name in files if (folder / name).is_file()))
    with step(f"comparing {size} of {record.name} with the digests that MLCommons publishes"):
        differing = list(differences(folder, benchmark))
    if differing:
        model = catalogue().benchmark(benchmark).model
        raise ModelError(
            f"{record.name} is not the model of {benchmark}",
            cause=first_of(differing, 3, "\n"),
            remedy=f"take it from MLCommons: _mlcommons.{model} among the tags of run-mlperf,inference",
        )
    return f"{len(files)} files have the digests that MLCommons publishes"


def _require_base(record: ModelRecord, benchmark: str, base: ModelRecord | None) -> None:
    made = record.quantization
    if made is None or base is None or base.recipe.get(IDENTITY) != benchmark or base.sha256 != made.base_sha256:
        raise ModelError(
            f"{record.name} is not known to be quantised from the model of {benchmark}",
            cause="the model that it was made from was not compared with the published digests",
            remedy="quantise the benchmark's own model in the same command: --quantize of run-mlperf,inference",
        )


def differences(folder: Path, benchmark: str, *, quick: bool = False) -> Iterator[str]:
    """Yield in words what sets the files of a folder apart from a benchmark's own model.

    With `quick` large files need only exist: their digests take seconds to minutes.
    """
    if not (files := _published_digests(benchmark)):
        yield f"no digests of the files of {catalogue().benchmark(benchmark).model} are known"
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif quick and path.stat().st_size > _SMALL_BYTES:
            continue
        elif (own := digest_of(path, digest.partition(":")[0])) != digest:
            yield f"{name} has {own}, published is {digest}"
    for path in sorted(path for kind in _SERVED for path in folder.glob(kind)):
        if path.name not in files:
            yield f"{path.name} is not among the published files"


def _published_digests(benchmark: str) -> dict[str, str]:
    """Return the published digest of each file by its path in the model's own folder."""
    name = catalogue().benchmark(benchmark).model
    inside = catalogue().model(name).mlcommons_folder
    return {
        path.removeprefix(f"{inside}/") if inside else path: digest for path, digest in published_digests(name).items()
    }
