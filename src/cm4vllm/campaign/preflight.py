"""What later recipes would refuse, refused by run and plan before anything is downloaded, installed or started."""

from __future__ import annotations

import fcntl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm.accuracy.graders.catalogue import grader
from cm4vllm.accuracy.graders.problems import require_problem_files
from cm4vllm.accuracy.sentences import check_given
from cm4vllm.assets.datasets import Wanted, check_file
from cm4vllm.assets.models import check_source
from cm4vllm.assets.published import require_file
from cm4vllm.campaign.ledger import LOCK_FILE
from cm4vllm.campaign.settings import Job
from cm4vllm.common.errors import NotWritable, ServerUnsuitable, UsageError
from cm4vllm.common.files import opened, require_space, require_writable, typed_path, typed_paths
from cm4vllm.common.plain_files import require_plain_files
from cm4vllm.results.index import require_published
from cm4vllm.serving.choice import require_device
from cm4vllm.serving.ipc_files import require_shared_memory
from cm4vllm.serving.launch_settings import require_usable
from cm4vllm.submission.source import open_source
from cm4vllm.submission.system import check_stated

__all__ = ["SPACE_BYTES", "absolute_paths", "preflight", "require_files", "require_results_folder"]

#: Room for logs, tree and report. A full-length run of both scenarios with 37 tokens a sample left 13 MiB; answers may
#: be as long as the benchmark allows, and a run that is repeated stands beside the old one until it is whole.
SPACE_BYTES = 512 * 2**20

#: The environment keys of files that are read hours later otherwise: in the dataset's format, and as system.yaml.
_DATASET, _CALIBRATION = "CM_DATASET_FILE", "CM_CALIBRATION_DATASET_FILE"
_PERFORMANCE = "CM_PERFORMANCE_DATASET_FILE"
_SYSTEM_FILE, _HW_NAME = "CM_MLPERF_SYSTEM_FILE", "CM_HW_NAME"
_NLTK, _SOURCE = "CM_NLTK_DATA_SOURCE", "CM_MLPERF_INFERENCE_SOURCE_DIR"
_PUBLISHED = "CM_MLPERF_PUBLISHED_RESULTS"
_DATASETS = (_DATASET, _CALIBRATION, _PERFORMANCE, "CM_COMPLIANCE_DATASET_FILE")
_PROBLEMS = "CM_LIVECODEBENCH_DIR"
_FOLDERS = (_SOURCE, _NLTK, _PROBLEMS, "CM_MLPERF_GRADER_SOURCE_DIR")
_PATHS = (*_DATASETS, *_FOLDERS, _SYSTEM_FILE, "CM_MLPERF_INFERENCE_API_SERVER_CA")
#: A hub's id, a name of the catalogue, or a folder; with a server that runs, the name that it gives the model.
_MODEL, _SERVER = "CM_VLLM_SERVER_MODEL_NAME", "CM_MLPERF_INFERENCE_API_SERVER"


def absolute_paths(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths that the flags name as they are from anywhere: later recipes work in folders of their own."""
    paths = {key: typed_path(env[key]) for key in _PATHS if env.get(key)}
    if (name := env.get(_MODEL)) and not env.get(_SERVER) and (folder := typed_path(name)).is_dir():
        paths[_MODEL] = folder
    found = {key: str(path.absolute()) for key, path in paths.items()}
    if given := env.get(_PUBLISHED):
        found[_PUBLISHED] = ",".join(map(str, typed_paths(given)))
    return found


def require_files(env: Mapping[str, Any]) -> None:
    """Refuse small files that are not what they should be, and large ones that do not exist.

    Raises UsageError, DatasetError, SubmissionError.
    """
    check_stated(env.get(_SYSTEM_FILE, ""), env.get(_HW_NAME, ""))
    for key in _DATASETS:
        if name := env.get(key):
            require_file(Path(name))
    require_published(typed_paths(env.get(_PUBLISHED, "")))


def preflight(env: Mapping[str, Any], job: Job) -> None:
    """Read the files that the flags name, and see whether the servers they ask for have room on this machine.

    Raises UsageError, ModelError, DatasetError, SourceUnavailable, InstallError, PortInUse, DiskFull, NotWritable.
    """
    if name := env.get(_DATASET):
        check_file(Path(name), Wanted.evaluation(job.benchmark))
    if name := env.get(_PERFORMANCE):
        check_file(Path(name), Wanted.performance(job.benchmark))
    if name := env.get(_CALIBRATION):
        check_file(Path(name), Wanted())
    check_source(job.sources.model, job.settings.dummy_layers)
    if (name := env.get(_SOURCE)) and job.settings.run_checker:
        open_source(Path(name))
    if (name := env.get(_NLTK)) and job.needs_sentence_model:
        check_given(Path(name))
    for files in filter(None, (grader(name).problems for name in job.graders)):
        require_problem_files(Path(job.settings.livecodebench_path), files)
    if job.settings.device and not job.settings.api_server:
        require_device(job.settings.device)
    require_usable(env)
    if not (job.settings.api_server or job.settings.rehearse):
        require_shared_memory()
    _require_room(job)
    require_results_folder(job.out)


def _require_room(job: Job) -> None:
    """Refuse a context for a server started here in which an answer of full length has no room, whatever its prompt."""
    given = job.settings.max_model_len
    longest = max(job.terms(scenario, mode).generation.max_tokens for scenario in job.scenarios for mode in job.modes)
    if given is not None and given <= longest and not job.settings.api_server:
        raise ServerUnsuitable(
            f"--max_model_len={given} is too short for {job.benchmark.name}",
            cause=f"up to {longest} tokens are generated after each prompt",
            remedy="leave it out: the longest prompt with its answer decides then",
        )


def require_results_folder(out: Path) -> None:
    """Refuse a results folder that cannot be written, is too full, has links or pipes, or that another run writes to.

    Writes nothing. Raises NotWritable, DiskFull, UsageError.
    """
    require_writable(out)
    require_space(out, SPACE_BYTES, "the results", "--output_dir")
    require_plain_files(out)
    try:
        with opened(out / LOCK_FILE) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except BlockingIOError as error:
        raise UsageError(
            f"another run is writing its results to {out}", remedy="wait for it, or choose another --output_dir"
        ) from error
    except OSError as error:
        raise NotWritable(
            f"cannot write to {out}", cause=f"{LOCK_FILE} there: {error.strerror}", remedy="choose another --output_dir"
        ) from error
