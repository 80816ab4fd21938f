"""All that a job gets before it measures, got beforehand: on a machine with a network, for one that may have none.

The steps are those of the job's schedule that fetch, and vLLM in place of its server. What they make is kept in the
cache of CM and of the hub, where the job itself finds it.
"""

import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from cm4vllm.campaign.amendments import Amendments
from cm4vllm.campaign.entry import UNCHANGED, checked_job
from cm4vllm.campaign.planning.schedule import environment_of, schedule
from cm4vllm.campaign.planning.step_environment import NOTHING, Records
from cm4vllm.campaign.planning.steps import Recipes, Step
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common import input_types
from cm4vllm.common.errors import SourceUnavailable
from cm4vllm.common.progress import say, warn
from cm4vllm.common.records import read_record
from cm4vllm.common.units import size_text
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.serving.installation.install import VllmRecord


class PreparedExports(Records, frozen=True, kw_only=True):
    """The exports of prepared steps: the records of assets, and the installation of vLLM."""

    installation: input_types.VllmInstallation = ""


def prepare_job(
    asked: CampaignSettings,
    recipes: Recipes,
    command: str,
    typed: Mapping[str, str] = NOTHING,
    changes: Amendments = UNCHANGED,
) -> None:
    """Get all that the job needs, and print what is left to do on the machine that serves. Raises CmError."""
    job = checked_job(asked, changes, prepare=True)
    for note in job.notes:
        say(f"note: {note}")
    environment, lacking, total = environment_of(job, typed), [], 0
    for step in _steps(job):
        say(f"{step.name}: {step.gives}")
        try:
            exports = recipes(step.tags, environment.of_step(step, step.inputs))
        except SourceUnavailable as error:
            if not step.without:
                raise
            warn(f"{step.name}: {error.in_one_line}; {step.without}")
            lacking.append(step.name)
            continue
        environment.take(exports)
        size = sum(map(_size, _folders(PreparedExports.of(dict(exports)))))
        total += size
        if size:
            say(f"{step.name}: {size_text(size)} on disk")
    say(f"prepared, {size_text(total)} on disk" + (f"; not to be had: {', '.join(lacking)}" if lacking else ""))
    left = [*_left(job, environment.read(PreparedExports)), f"give the command without --prepare: {_without(command)}"]
    say(f"left for the machine that serves: {'; '.join(left)}")


def _steps(job: Job) -> Iterator[Step]:
    """Yield the steps that fetch, with vLLM and the quantiser where the job starts its server and quantises."""
    settings = job.settings
    is_installed = not (settings.api_server or settings.rehearse or settings.launch.container)
    if is_installed:
        yield Step(name="vLLM", tags="get,vllm", gives="vLLM in an environment of its own", fetches=True)
    if job.quantisation:
        yield Step(name="quantiser", tags="get,llm-compressor", gives="the program that quantises", fetches=True)
    yield from (step for step in schedule(job) if step.fetches)


def _folders(exports: PreparedExports) -> Iterator[Path]:
    """Yield the folders and files that the exports of a step name."""
    if exports.model_record:
        yield Path(read_record(Path(exports.model_record), ModelRecord).path)
    for path in (exports.dataset_record, exports.performance_dataset_record, exports.compliance_dataset_record):
        if path:
            yield Path(read_record(Path(path), DatasetRecord).path)
    if exports.installation:
        yield Path(exports.installation).parent


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; a link counts as what it leads to."""
    if not path.is_dir():
        return path.stat().st_size if path.exists() else 0
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _left(job: Job, exports: PreparedExports) -> Iterator[str]:
    """Yield what only the machine that serves can do."""
    if job.machine is not None:
        same = f"the same Python and the same kind of processor, {platform.machine()}"
        yield f"it has the same CM_REPOS and HF_HOME, as on a shared file system, {same}"
    if exports.installation:
        record = read_record(Path(exports.installation), VllmRecord)
        if job.machine is not None:
            yield f"the first server proves vLLM{f', with a driver from {record.driver} on' if record.driver else ''}"
        if record.kernels:
            yield record.kernels
    if job.quantisation:
        yield "the model is quantised"


def _without(command: str) -> str:
    return " ".join(word for word in command.split() if word.partition("=")[0] not in ("--prepare", "--machine"))
