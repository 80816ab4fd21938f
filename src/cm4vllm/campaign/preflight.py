"""What later recipes would refuse, refused by run and plan before anything is downloaded, installed or started."""

from __future__ import annotations

import fcntl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm.accuracy.sentences import check_given
from cm4vllm.assets.datasets import check_file
from cm4vllm.assets.models import check_source
from cm4vllm.assets.published import require_file
from cm4vllm.campaign.settings import Job
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import require_space, require_writable
from cm4vllm.hardware.system_file import read_system_file
from cm4vllm.serving.choice import require_device
from cm4vllm.serving.launch import require_usable
from cm4vllm.submission.source import open_source

__all__ = ["LOCK_FILE", "SPACE_BYTES", "absolute_paths", "preflight", "require_files", "require_results_folder"]

#: Room for logs, tree and report. A full-length run of both scenarios with 37 tokens a sample left 13 MiB; answers may
#: be as long as the benchmark allows, and a run that is repeated stands beside the old one until it is whole.
SPACE_BYTES = 512 * 2**20
#: The file that keeps a second run out of a results folder.
LOCK_FILE = ".lock"

#: The environment keys of files that are read hours later otherwise: in the dataset's format, and as system.yaml.
_DATASET, _CALIBRATION = "CM_DATASET_FILE", "CM_CALIBRATION_DATASET_FILE"
_SYSTEM_FILE, _NLTK, _SOURCE = "CM_MLPERF_SYSTEM_FILE", "CM_NLTK_DATA_SOURCE", "CM_MLPERF_INFERENCE_SOURCE_DIR"
_PATHS = (_DATASET, _CALIBRATION, _SYSTEM_FILE, _SOURCE, _NLTK, "CM_MLPERF_INFERENCE_API_SERVER_CA")
#: A hub's id, a name of the catalogue, or a folder; with a server that runs, the name that it gives the model.
_MODEL, _SERVER = "CM_VLLM_SERVER_MODEL_NAME", "CM_MLPERF_INFERENCE_API_SERVER"


def absolute_paths(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths that the flags name as they are from anywhere: later recipes work in folders of their own."""
    paths = {key: Path(env[key]).expanduser() for key in _PATHS if env.get(key)}
    if (name := env.get(_MODEL)) and not env.get(_SERVER) and Path(name).expanduser().is_dir():
        paths[_MODEL] = Path(name).expanduser()
    return {key: str(path.absolute()) for key, path in paths.items()}


def require_files(env: Mapping[str, Any]) -> None:
    """Refuse small files that are not what they should be, and large ones that do not exist.

    Raises UsageError, DatasetError.
    """
    if name := env.get(_SYSTEM_FILE):
        read_system_file(Path(name))
    for key in (_DATASET, _CALIBRATION):
        if name := env.get(key):
            require_file(Path(name))


def preflight(env: Mapping[str, Any], job: Job) -> None:
    """Read the files that the flags name, and see whether the servers they ask for have room on this machine.

    Raises UsageError, ModelError, DatasetError, SourceUnavailable, InstallError, PortInUse, DiskFull, NotWritable.
    """
    if name := env.get(_DATASET):
        check_file(Path(name), job.benchmark)
    if name := env.get(_CALIBRATION):
        check_file(Path(name), None)
    check_source(job.sources.model)
    if (name := env.get(_SOURCE)) and job.settings.run_checker:
        open_source(Path(name))
    if (name := env.get(_NLTK)) and job.sources.needs_sentence_model:
        check_given(Path(name))
    if job.settings.device and not job.settings.api_server:
        require_device(job.settings.device)
    require_usable(env)
    require_results_folder(job.out)


def require_results_folder(out: Path) -> None:
    """Refuse a results folder that cannot be written, is too full, or that another run writes to. Writes nothing.

    Raises NotWritable, DiskFull, UsageError.
    """
    require_writable(out)
    require_space(out, SPACE_BYTES, "the results", "--output_dir")
    try:
        with (out / LOCK_FILE).open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except BlockingIOError as error:
        raise UsageError(f"another run is writing its results to {out}",
                         remedy="wait for it, or choose another --output_dir") from error
