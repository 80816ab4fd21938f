"""Models: a stand-in, SmolLM2 of a Python package, a folder, one of a hub or MLCommons' storage, or without weights."""

import fnmatch
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from cm4vllm.assets import dummy
from cm4vllm.assets.downloads import hub, mlcommons
from cm4vllm.assets.model_sizes import planned_downloads, require_token
from cm4vllm.assets.packaged import smollm2
from cm4vllm.assets.tiny.stand_ins import STAND_INS, variation_of
from cm4vllm.common import input_types
from cm4vllm.common.errors import DownloadError, ModelError, UsageError, nearest
from cm4vllm.common.files import given_path, sha256_of, sha256_of_tree
from cm4vllm.common.progress import say, step
from cm4vllm.common.records import write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.records.assets import DUMMY_SOURCE, STAND_IN_SOURCE, ModelRecord
from cm4vllm.records.weights.checkpoint import fingerprint, read_checkpoint
from cm4vllm.rules import CatalogueModel, benchmark_names, catalogue, published_digests

#: The name of the record's file.
MODEL_FILE = "model.json"
#: Files that a folder of weights may hold and vLLM does not read.
_LEFT_OUT = ("*.git/*", "*.bin", "*.pth", "*.pt", "*.gguf", "*original/*", "*.pdf")


class ModelSettings(Settings, frozen=True, kw_only=True):
    """Choice of the model: `source` is a stand-in's (tiny, ...), smollm2, dummy, path, or a place to download from.

    `location` is the folder, the hub id, the catalogue's name, the manifest, or the name that a given server has for
    its model; `served_folder` is then the folder on this machine that the server reports, empty for none. `name` is a
    name of the catalogue, which goes before all others. With `verify` files that were proved before are read again.
    `layers` are those of a dummy, None for all. `machine` names the machine of a plan for another one.
    """

    source: Annotated[str, Key("CM_ML_MODEL_SOURCE_KIND")] = "tiny"
    location: Annotated[str, Key("CM_ML_MODEL_LOCATION")] = ""
    name: Annotated[str, Key("CM_ML_MODEL_CATALOGUE_NAME")] = ""
    served_folder: input_types.ServedFolder = ""
    verify: Annotated[bool, Key("CM_ML_MODEL_VERIFY")] = False
    revision: input_types.ModelRevision = ""
    python: input_types.VllmPython = ""
    api_server: input_types.ApiServer = ""
    layers: input_types.DummyLayers = None
    machine: input_types.Machine = ""

    @property
    def chosen(self) -> tuple[str, str]:
        """The kind of source and the location that count."""
        return ("catalogue", self.name) if self.name else (self.source, self.location)


def provide(settings: ModelSettings, folder: Path, locks: Path = Path()) -> ModelRecord:
    """Provide the model and write its record to `folder`; a stand-in is copied there too, and SmolLM2 made there.

    `locks` is the recipe's folder, with the packages that it pins. Raises ModelError, DownloadError, InstallError,
    DiskFull, UsageError.
    """
    source, where = settings.chosen
    sources: dict[str, Callable[[], ModelRecord]] = {
        **{variation: partial(_stand_in, variation, folder) for variation in STAND_INS},
        smollm2.VARIATION: lambda: _smollm2(folder / smollm2.NAME, locks / smollm2.LOCK),
        "dummy": lambda: _dummy(where, settings.layers, folder),
        "path": lambda: _local(given_path(where)),
        "hf": lambda: _hub(where, settings.revision),
        "catalogue": lambda: _catalogue_model(where, settings.revision),
        "mlcommons": lambda: _mlcommons(where, again=settings.verify),
        "served": lambda: _served_model(where, settings.served_folder, settings.revision),
    }
    if source not in sources:
        raise UsageError(f"unknown model source {source!r}", remedy=nearest(source, sources))
    record = sources[source]()
    write_record(folder / MODEL_FILE, record)
    return record


def check(settings: ModelSettings) -> None:
    """Raise what `provide` raises for these settings before it asks any network. Raises ModelError, UsageError."""
    source, where = settings.chosen
    check_source(f"_{source}.{where}", settings.layers)


def planned_model(settings: ModelSettings) -> list[Mapping[str, object]] | None:
    """Return what `provide` downloads, in the form of a meta's `brings`; None where the meta itself says it.

    Raises what `check` raises, and for the machine that it runs on DownloadError without a token that it needs.
    """
    check(settings)
    source, where = settings.chosen
    if not settings.machine:
        require_token(source, where, settings.revision)
    return planned_downloads(source, where, settings.revision) or None


def check_source(variation: str, layers: int | None = None) -> None:
    """Raise what `provide` raises for a variation of get,ml-model (`_path.FOLDER`, ...) before it asks any network.

    Raises ModelError, UsageError.
    """
    source, _, where = variation.removeprefix("_").partition(".")
    if layers is not None and source != "dummy":
        raise UsageError(
            f"--dummy_layers={layers} needs a dummy model",
            cause="the layers of other models are those of their files",
            remedy="add _dummy.NAME to the tags, or leave it out",
        )
    checks: dict[str, Callable[[str], object]] = {
        "dummy": lambda name: dummy.require_layers(dummy.known_model(name), layers),
        "path": lambda folder: read_checkpoint(given_path(folder)),
        "hf": _require_hub_name,
        "served": _require_hub_name,
        "catalogue": catalogue().model,
        "mlcommons": _model_in_catalogue,
    }
    if source in checks:
        checks[source](where)


class ModelExports(Settings, frozen=True, kw_only=True):
    """The exports of the recipes that provide a model."""

    name: input_types.ModelName
    path: Annotated[str, Key("CM_ML_MODEL_PATH")]
    record: input_types.ModelRecordPath
    sha256: Annotated[str, Key("CM_ML_MODEL_SHA256")]
    tokenizer_sha256: Annotated[str, Key("CM_ML_MODEL_TOKENIZER_SHA256")]


def model_exports(record: ModelRecord, folder: Path) -> ModelExports:
    """Return the exports for a model whose record is in `folder`."""
    return ModelExports(
        name=record.name,
        path=record.path,
        record=str(folder / MODEL_FILE),
        sha256=record.sha256,
        tokenizer_sha256=sha256_of(Path(record.path) / "tokenizer.json"),
    )


def check_unchanged(record: ModelRecord) -> None:
    """Raise ModelError when a model's files are not those its record was made from.

    They are read again where sizes or times differ: a copy, or a change of owner, has other times and the same content.
    """
    folder, noted = Path(record.path), record.recipe.get("files", "")
    if not noted or fingerprint(folder) == noted:
        return
    with step(f"{folder} was copied or changed since its digest was computed: reading it again"):
        same = sha256_of_tree(folder) == record.sha256
    if not same:
        raise ModelError(
            f"the files of {record.path} have changed since they were read",
            cause="its digest and data types were recorded from the older files",
            remedy="read them again: cm run script --tags=get,ml-model with the same variation and --renew",
        )


def _stand_in(variation: str, folder: Path) -> ModelRecord:
    """Copy a stand-in into a folder of its name."""
    stand_in = STAND_INS[variation]
    stand_in.copy_to(folder / stand_in.name)
    return _record_of_folder(folder / stand_in.name, stand_in.name, STAND_IN_SOURCE, recipe={"task": stand_in.task})


def _smollm2(place: Path, lock: Path) -> ModelRecord:
    smollm2.make_model(place, lock)
    record = _record_of_folder(place, place.name, smollm2.SOURCE, recipe={})
    return msgspec.structs.replace(record, weight_transformations=smollm2.TRANSFORMED)


def _dummy(name: str, layers: int | None, folder: Path) -> ModelRecord:
    model = dummy.known_model(name)
    dummy.require_layers(model, layers)
    place = folder / dummy.dummy_name(model, layers)
    dummy.make(model, layers, place)
    return _record_of_folder(
        place,
        place.name,
        f"{DUMMY_SOURCE}; {dummy.words_of(model, layers)}",
        recipe={"catalogue": model, "tokenizer": dummy.TOKENIZER},
    )


def _local(folder: Path) -> ModelRecord:
    read_checkpoint(folder)  # before the name: a missing folder has none
    return _record_of_folder(folder, _published_name(folder), f"local folder {folder.name}", recipe={})


def _served_model(name: str, folder: str, revision: str) -> ModelRecord:
    """Take a given server's model from the folder that the server reports, or by its name from the hub."""
    if not folder:
        try:
            return _hub(name, revision)
        except DownloadError as error:
            stand_in = STAND_INS[variation_of("")]
            error.remedy += (
                f"\nor, where the server serves {stand_in.title} of cm4vllm under that name, add "
                f"_{variation_of('')} to the tags of run-mlperf,inference"
            )
            raise
    return _record_of_folder(
        Path(folder),
        _not_a_benchmarks(_safe(name.rpartition("/")[2])),
        f"served as {name} from the folder {Path(folder).name}",
        recipe={},
    )


def _hub(name: str, revision: str) -> ModelRecord:
    _require_hub_name(name)
    folder = hub.snapshot(name, revision)
    return _record_of_folder(
        folder,
        _published_name(folder),
        f"Hugging Face hub, {name} at {folder.name}",
        recipe={"hub": name, "revision": folder.name},
    )


def _require_hub_name(name: str) -> None:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise UsageError(
            f"{name!r} is not the name of a hub's model",
            cause="and this machine has no folder of that name",
            remedy="give a hub's model as owner/name, or the folder that holds config.json, tokenizer.json and "
            "*.safetensors",
        )


def _catalogue_model(name: str, revision: str) -> ModelRecord:
    """Take a model of the catalogue from its hub, at the revision that is published for it unless another is given."""
    model = catalogue().model(name)
    if model.gate and not os.environ.get("HF_TOKEN"):
        say(f"{name} is gated ({model.gate}); HF_TOKEN is not set")
    record = _hub(model.hub, revision or model.revision)
    return msgspec.structs.replace(record, recipe={**record.recipe, "catalogue": name})


def _mlcommons(name: str, *, again: bool) -> ModelRecord:
    """Take a model from MLCommons' storage: one of the catalogue, or that of any manifest."""
    model = _model_in_catalogue(name)
    manifest = mlcommons.read_manifest(model.mlcommons if model else name)
    published = published_digests(name) if model else {}
    wanted = published or {
        path: "" for path in manifest.digests if not any(fnmatch.fnmatch(path, pattern) for pattern in _LEFT_OUT)
    }
    folder = mlcommons.downloads_folder(manifest.name)
    mlcommons.download(manifest, folder, wanted, again=again)
    root = folder / (model.mlcommons_folder if model else "")
    recipe = {"mlcommons": manifest.base, **({"catalogue": name} if model else {})}
    return _record_of_folder(
        root, _safe(name if model else manifest.name), f"MLCommons, {manifest.base}", recipe=recipe
    )


def _model_in_catalogue(name: str) -> CatalogueModel | None:
    """Return a model of the catalogue; None for a name that it does not have. Raises UsageError."""
    model = catalogue().models.get(name)
    if model is not None and not model.mlcommons:
        hosted = [other for other, entry in catalogue().models.items() if entry.mlcommons]
        raise UsageError(f"MLCommons does not host {name}", remedy=f"it hosts {', '.join(hosted)}")
    return model


def _record_of_folder(folder: Path, name: str, source: str, *, recipe: dict[str, str]) -> ModelRecord:
    checkpoint = read_checkpoint(folder)
    if checkpoint.stand_in and STAND_IN_SOURCE not in source:
        source += f"; {STAND_IN_SOURCE}"
    if checkpoint.dummy and DUMMY_SOURCE not in source:
        source += f"; {DUMMY_SOURCE}"
    return ModelRecord(
        name=name,
        path=str(folder),
        source=source,
        sha256=sha256_of_tree(folder),
        parameters=checkpoint.parameters,
        architecture=checkpoint.architecture,
        weight_data_types=checkpoint.weight_data_types,
        min_tokens=STAND_INS[variation_of(checkpoint.architecture)].min_tokens if checkpoint.stand_in else 1,
        recipe={**recipe, "files": fingerprint(folder)},
    )


def _published_name(folder: Path) -> str:
    """Return the name of a model by its folder's name; for a snapshot in a hub cache, the model's name on the hub."""
    name = folder.name
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        name = folder.parent.parent.name.rpartition("--")[2]
    return _not_a_benchmarks(_safe(name))


def _not_a_benchmarks(name: str) -> str:
    """Return a name under which results can be published: a model called as a benchmark is not its model for it."""
    return f"local-{name}" if name.lower().replace("_", ".") in benchmark_names() else name


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"
