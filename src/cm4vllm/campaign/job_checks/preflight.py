"""Early checks of plan and run: they refuse whatever a later recipe would refuse, before anything is started."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cm4vllm.accuracy.graders.catalogue import grader
from cm4vllm.accuracy.graders.problems import require_problem_files
from cm4vllm.accuracy.sentences import given_model
from cm4vllm.assets.models import check_source
from cm4vllm.assets.samples.dataset_files import Requirements, check_file
from cm4vllm.assets.samples.published_formats import require_file
from cm4vllm.campaign.job_checks.given_datasets import (
    COMPLIANCE_FILE,
    DATASET_FILE,
    PERFORMANCE_FILE,
    require_given_datasets,
)
from cm4vllm.campaign.ledger import LOCK_FILE
from cm4vllm.campaign.locks import require_unlocked
from cm4vllm.campaign.powered_run import require_power
from cm4vllm.campaign.settings import Job
from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.common.files import require_space, require_writable, typed_path, typed_paths
from cm4vllm.common.folders.replaceable_folders import require_replaceable
from cm4vllm.common.plain_files import require_plain_files
from cm4vllm.loadgen.measurement import RUN
from cm4vllm.rules import Terms
from cm4vllm.serving.installation.vllm_choice import require_device
from cm4vllm.serving.launch_settings import LaunchSettings, require_usable
from cm4vllm.serving.supervision.ipc_files import require_shared_memory
from cm4vllm.submission.checker.source import open_source
from cm4vllm.submission.system_records import check_stated
from cm4vllm.submission.tree import SUBMISSION
from cm4vllm.submission.tree_writer import tree_kind

#: Room for logs, tree and report. A full-length run of both scenarios with 37 tokens a sample left 13 MiB; answers may
#: be as long as the benchmark allows, and a run that is repeated stands beside the old one until it is whole.
_SPACE_BYTES = 512 * 2**20

#: The environment keys of files that are read hours later otherwise: in the dataset's format, and as system.yaml.
_CALIBRATION = "CM_CALIBRATION_DATASET_FILE"
_SYSTEM_FILE, _HW_NAME = "CM_MLPERF_SYSTEM_FILE", "CM_HW_NAME"
_NLTK, _SOURCE = "CM_NLTK_DATA_SOURCE", "CM_MLPERF_INFERENCE_SOURCE_DIR"
_PUBLISHED = "CM_MLPERF_PUBLISHED_RESULTS"
_DATASETS = (DATASET_FILE, _CALIBRATION, PERFORMANCE_FILE, COMPLIANCE_FILE)
_PROBLEMS = "CM_LIVECODEBENCH_DIR"
_FOLDERS = (_SOURCE, _NLTK, _PROBLEMS, "CM_MLPERF_GRADER_SOURCE_DIR")
_POWER = (
    "CM_MLPERF_POWER_SETTINGS",
    "CM_MLPERF_POWER_WIRING",
    "CM_MLPERF_POWER_SUPPLIES",
    "CM_MLPERF_POWER_SOURCE_GIT",
)
_PATHS = (*_DATASETS, *_FOLDERS, *_POWER, _SYSTEM_FILE, "CM_MLPERF_INFERENCE_API_SERVER_CA")
#: A hub's id, a name of the catalogue, or a folder; with a server that runs, the name that it gives the model.
_MODEL, _SERVER = "CM_VLLM_SERVER_MODEL_NAME", "CM_MLPERF_INFERENCE_API_SERVER"


def absolute_paths(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths that the flags name as they are from anywhere: later recipes work in folders of their own."""
    paths = {key: typed_path(env[key]) for key in _PATHS if env.get(key)}
    if (name := env.get(_MODEL)) and not env.get(_SERVER) and (folder := typed_path(name)).is_dir():
        paths[_MODEL] = folder
    absolute = {key: str(path.absolute()) for key, path in paths.items()}
    if given := env.get(_PUBLISHED):
        absolute[_PUBLISHED] = ",".join(map(str, typed_paths(given)))
    return absolute


def require_files(env: Mapping[str, Any]) -> None:
    """Refuse small files that are not what they should be, and large ones that do not exist.

    Raises UsageError, DatasetError, SubmissionError.
    """
    check_stated(env.get(_SYSTEM_FILE, ""), env.get(_HW_NAME, ""))
    for key in _DATASETS:
        # A folder is read by the benchmark's own rules, below (require_given_datasets).
        if (name := env.get(key)) and not Path(name).is_dir():
            require_file(Path(name))
    if given := env.get(_PUBLISHED):
        from cm4vllm.results.result_index import require_published  # with every check of a tree: few jobs name results

        require_published(typed_paths(given))


def preflight(env: Mapping[str, Any], job: Job) -> tuple[str, ...]:
    """Read the files that the flags name, see whether the servers they ask for have room here, and return notes.

    Raises UsageError, ModelError, DatasetError, SourceUnavailable, InstallError, PortInUse, DiskFull, NotWritable.
    """
    check_source(job.sources.model, job.settings.dummy_layers)
    runs = [job.terms(scenario, mode) for scenario in job.scenarios for mode in job.modes]
    notes = require_given_datasets(
        env, job.benchmark, runs, model=job.sources.model, valid=not job.rehearsal, tests=job.tests
    )
    if name := env.get(_CALIBRATION):
        check_file(Path(name), Requirements())
    if (name := env.get(_SOURCE)) and job.settings.run_checker:
        open_source(Path(name))
    if (name := env.get(_NLTK)) and job.needs_sentence_model:
        given_model(Path(name))
    for files in filter(None, (grader(name).problems for name in job.graders)):
        require_problem_files(Path(job.settings.livecodebench_path), files)
    require_server(env, runs)
    require_power(env, tree=not job.no_tree)
    require_results_folder(job.out, job.out / LOCK_FILE)
    if not job.no_tree:
        require_replaceable(job.out / SUBMISSION, tree_kind(job.settings.submitter, "--output_dir"))
    return notes


def require_server(env: Mapping[str, Any], runs: Sequence[Terms]) -> None:
    """Refuse settings with which no server can be started or asked for `runs` on this machine.

    Raises UsageError, InstallError, PortInUse, ServerUnsuitable.
    """
    given, device = env.get(_SERVER), env.get("CM_MLPERF_DEVICE")
    if device and not given:
        require_device(device)
    settings = LaunchSettings.of(env)
    require_usable(settings)
    if given:
        return
    if not env.get("CM_MLPERF_REHEARSE") and not env.get("CM_VLLM_CONTAINER"):  # a container has its own
        require_shared_memory()
    _require_room(settings.max_model_len, runs)


def _require_room(max_model_len: int | None, runs: Sequence[Terms]) -> None:
    """Refuse a context for a server started here in which an answer of full length has no room, whatever its prompt."""
    longest = max(run.generation.max_tokens for run in runs)
    if max_model_len is not None and max_model_len <= longest:
        raise ServerUnsuitable(
            f"--max_model_len={max_model_len} is too short for {runs[0].benchmark}",
            cause=f"up to {longest} tokens are generated after each prompt",
            remedy="leave it out: the longest prompt with its answer decides then",
        )


def require_run_folder(folder: Path, lock: Path) -> None:
    """Refuse the folder of one run, which the run replaces, where that cannot be done. Writes nothing.

    Raises what require_results_folder and require_replaceable raise.
    """
    require_replaceable(folder, RUN)
    if folder.resolve() == Path.cwd():  # the run's files lie among others, whatever these are
        require_writable(folder)
        require_unlocked(lock, folder)
    else:
        require_results_folder(folder, lock)


def require_results_folder(out: Path, lock: Path) -> None:
    """Refuse a results folder that cannot be written, is too full, has links or pipes, or that another run writes to.

    A run that writes to it holds its `lock`. Writes nothing. Raises NotWritable, DiskFull, UsageError.
    """
    require_writable(out)
    require_space(out, _SPACE_BYTES, "the results", "--output_dir")
    require_plain_files(out)
    require_unlocked(lock, out)
