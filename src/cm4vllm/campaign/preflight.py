"""What later recipes would refuse, refused before anything is downloaded, installed or started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm.assets.published import read_published
from cm4vllm.common.settings import read_settings
from cm4vllm.hardware.system_file import read_system_file
from cm4vllm.serving.launch import LaunchSettings, require_access, require_places

__all__ = ["absolute_paths", "preflight"]

#: The environment keys of files that are read hours later otherwise: in the dataset's format, and as system.yaml.
_DATASETS = ("CM_DATASET_FILE", "CM_CALIBRATION_DATASET_FILE")
_SYSTEM_FILE = "CM_MLPERF_SYSTEM_FILE"
_PATHS = (*_DATASETS, _SYSTEM_FILE, "CM_MLPERF_INFERENCE_SOURCE_DIR", "CM_NLTK_DATA_SOURCE",
          "CM_MLPERF_INFERENCE_API_SERVER_CA")
#: A hub's id, a name of the catalogue, or a folder; with a server that runs, the name that it gives the model.
_MODEL, _SERVER = "CM_VLLM_SERVER_MODEL_NAME", "CM_MLPERF_INFERENCE_API_SERVER"


def absolute_paths(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths that the flags name as they are from anywhere: later recipes work in folders of their own."""
    paths = {key: Path(env[key]).expanduser() for key in _PATHS if env.get(key)}
    if (name := env.get(_MODEL)) and not env.get(_SERVER) and Path(name).expanduser().is_dir():
        paths[_MODEL] = Path(name).expanduser()
    return {key: str(path.absolute()) for key, path in paths.items()}


def preflight(env: Mapping[str, Any]) -> None:
    """Read the files that the flags name, and see whether the servers they ask for have room on this machine.

    Raises UsageError, DatasetError, PortInUse.
    """
    if name := env.get(_SYSTEM_FILE):
        read_system_file(Path(name))
    for key in _DATASETS:
        if name := env.get(key):
            read_published(Path(name))
    require_access(read_settings(LaunchSettings, env))
    if not env.get(_SERVER):
        require_places(env)
