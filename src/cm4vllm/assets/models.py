"""Models: the tiny one that is trained here, a local folder, or one of the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from cm4vllm.assets import tiny_model
from cm4vllm.assets.checkpoint import fingerprint, read_checkpoint
from cm4vllm.assets.records import ModelRecord
from cm4vllm.common.errors import CmError, ModelError, UsageError, translated_os_errors
from cm4vllm.common.files import require_space, sha256_of, sha256_of_tree
from cm4vllm.common.progress import say, step
from cm4vllm.common.records import Record, write_record
from cm4vllm.common.settings import Key
from cm4vllm.rules.benchmarks import BENCHMARKS

__all__ = ["MODEL_FILE", "TINY_NAME", "ModelSettings", "check_unchanged", "provide", "tokenizer_sha256"]

#: The name of the record's file.
MODEL_FILE = "model.json"
#: Under which the tiny model is served and published.
TINY_NAME = "cm4vllm-tiny"
#: What a hub's model needs beside its own files.
_SPARE_BYTES = 2**30
#: Weights in other formats, which vLLM does not need where there are safetensors.
_LEFT_OUT = ["*.bin", "*.gguf", "*.pth", "*.h5", "*.msgpack", "*.onnx", "original/*", "*.pt"]


class ModelSettings(Record, frozen=True, kw_only=True):
    """Which model: `source` is tiny, path or hf; `location` the folder or the hub id; `python` one that has torch."""

    source: Annotated[str, Key("CM_ML_MODEL_SOURCE_KIND")] = "tiny"
    location: Annotated[str, Key("CM_ML_MODEL_LOCATION")] = ""
    revision: Annotated[str, Key("CM_ML_MODEL_REVISION")] = ""
    python: Annotated[str, Key("CM_VLLM_PYTHON_BIN_WITH_PATH")] = ""


def provide(settings: ModelSettings, folder: Path) -> ModelRecord:
    """Have the model and write its record to `folder`; the tiny one is trained there too.

    Raises ModelError, InstallError, DiskFull.
    """
    if settings.source == "tiny":
        record = _tiny(settings.python, folder / TINY_NAME)
    elif settings.source == "path":
        record = _local(Path(settings.location).expanduser().absolute())
    elif settings.source == "hf":
        record = _hub(settings.location, settings.revision)
    else:
        raise UsageError(f"unknown model source {settings.source!r}", remedy="known: tiny, path, hf")
    write_record(folder / MODEL_FILE, record)
    return record


def tokenizer_sha256(record: ModelRecord) -> str:
    """Return the digest of the model's tokenizer.json."""
    return sha256_of(Path(record.path) / "tokenizer.json")


def check_unchanged(record: ModelRecord) -> None:
    """Raise ModelError when files of a local model are not those its record was made from."""
    noted = record.recipe.get("files", "")
    if noted and fingerprint(Path(record.path)) != noted:
        raise ModelError(
            f"the files of {record.path} have changed since they were read",
            cause="the record of its digest and data types is older than the files",
            remedy=f"read them again: cm run script --tags=get,ml-model,_path.{record.path} --renew",
        )


def _tiny(python: str, folder: Path) -> ModelRecord:
    if not python:
        raise ModelError(
            "the tiny model is not there yet, and nothing is installed when a server is given",
            cause="it is trained with the packages of vLLM's environment",
            remedy="train it once: cm run script --tags=get,ml-model,_tiny\n"
                   "or use the model that the server serves: add its folder to the tags, as _path.<folder>",
        )
    tiny_model.train(Path(python), folder)
    return _described(folder, TINY_NAME, "trained here on made-up harbour logs (cm4vllm.assets.tiny_model)",
                      min_tokens=2, recipe=tiny_model.RECIPE)


def _local(folder: Path) -> ModelRecord:
    read_checkpoint(folder)  # before the name: a missing folder has none
    return _described(folder, _published_name(folder), f"local folder {folder.name}",
                      recipe={"files": fingerprint(folder)})


def _hub(name: str, revision: str) -> ModelRecord:
    """Take a model from the hub's cache on this machine, downloading what is missing there.

    A download that was cut short goes on where it stopped. The token comes from HF_TOKEN alone.
    """
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise UsageError(f"{name!r} is not the name of a hub's model", remedy="give it as owner/name")
    with step(f"downloading {name}"):
        snapshot = _downloaded(name, revision)
    commit = snapshot.name
    return _described(snapshot, _published_name(snapshot), f"Hugging Face hub, {name} at {commit}",
                      recipe={"hub": name, "revision": commit})


def _downloaded(name: str, revision: str) -> Path:
    """Return the snapshot's folder. Raises ModelError, DiskFull, NotWritable."""
    from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    cache = Path(constants.HF_HUB_CACHE)
    token = os.environ.get("HF_TOKEN") or False
    try:
        info = HfApi(token=token).model_info(name, revision=revision or None, files_metadata=True, timeout=20)
        missing = sum(file.size or 0 for file in info.siblings or [] if file.rfilename.endswith(".safetensors")
                      and not isinstance(try_to_load_from_cache(name, file.rfilename, cache_dir=cache,
                                                                revision=info.sha), str))
        if missing:
            require_space(cache, missing + _SPARE_BYTES, f"the model {name}")
        with translated_os_errors("download to", cache):
            return Path(snapshot_download(name, revision=info.sha, cache_dir=cache, token=token,
                                          ignore_patterns=_LEFT_OUT))
    except CmError:
        raise
    except GatedRepoError as error:
        raise ModelError(f"the model {name} is gated", cause=_first_line(error),
                         remedy="accept its licence on the hub and set HF_TOKEN in the environment") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"the model {name} has no revision {revision!r}", cause=_first_line(error),
                         remedy="give a branch, tag or commit with --revision") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"the hub has no model {name}, or it is private", cause=_first_line(error),
                         remedy="check its name; set HF_TOKEN in the environment for a private one") from error
    except Exception as error:
        # The hub's client lets its HTTP library's own errors through, and which library that is changes by version.
        if (snapshot := _cached(name, revision, cache)) is not None:
            say(f"{name}: the hub is not reachable; the copy in its cache on this machine is used")
            return snapshot
        raise ModelError(f"the model {name} cannot be downloaded", cause=_first_line(error),
                         remedy="download it where the hub is reachable and give the folder: "
                                "--tags=...,_path.<folder>\nor set HF_ENDPOINT to a mirror") from error


def _cached(name: str, revision: str, cache: Path) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision or None, cache_dir=cache, local_files_only=True))
    except Exception:
        return None


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def _described(folder: Path, name: str, source: str, *, recipe: dict[str, str], min_tokens: int = 1) -> ModelRecord:
    checkpoint = read_checkpoint(folder)
    return ModelRecord(
        name=name, path=str(folder), source=source, sha256=sha256_of_tree(folder), parameters=checkpoint.parameters,
        architecture=checkpoint.architecture, weight_data_types=checkpoint.weight_data_types, min_tokens=min_tokens,
        recipe=dict(recipe),
    )  # fmt: skip


def _published_name(folder: Path) -> str:
    """Return a folder's name as a model's name; of a hub cache's snapshot, the model's own."""
    name = folder.name
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        name = folder.parent.parent.name.rpartition("--")[2]
    name = _safe(name)
    # A folder called as a benchmark is not that benchmark's model for it.
    return f"local-{name}" if name.lower().replace("_", ".") in BENCHMARKS else name


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"
