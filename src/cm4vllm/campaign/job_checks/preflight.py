"""Early checks of plan and run: they refuse whatever a later recipe would refuse, before anything is started."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from cm4vllm.accuracy.graders.catalogue import grader
from cm4vllm.accuracy.graders.problems import require_problem_files
from cm4vllm.accuracy.sentences import given_model
from cm4vllm.assets.models import check_source
from cm4vllm.assets.samples.dataset_files import Requirements, check_file, checked_rows
from cm4vllm.assets.samples.prompt_tokens import misread_prompts, with_token_ids
from cm4vllm.assets.samples.published_formats import require_file
from cm4vllm.campaign.asset_sources import AssetInputs
from cm4vllm.campaign.job_checks.fit_check import require_fit
from cm4vllm.campaign.ledger import LOCK_FILE, require_unlocked
from cm4vllm.campaign.powered_run import PowerInputs, require_power
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.common.files import require_space, require_writable, typed_path, typed_paths
from cm4vllm.common.folders.ownership_notes import require_replaceable
from cm4vllm.common.folders.plain_files import require_plain_files
from cm4vllm.loadgen.measurement import RUN
from cm4vllm.records.weights.checkpoint import read_checkpoint
from cm4vllm.rules import BenchmarkTerms, Mode, RulesInputs, Terms, audit
from cm4vllm.serving.launch_settings import (
    LaunchSettings,
    chosen_server,
    require_access,
    require_installable,
    require_usable,
)
from cm4vllm.serving.options.arguments import require_context
from cm4vllm.serving.probing.server_probe import served_models
from cm4vllm.serving.probing.server_requests import Site, base_urls
from cm4vllm.serving.supervision.ipc_files import require_shared_memory
from cm4vllm.submission.checker.source import open_source
from cm4vllm.submission.system_records import check_stated
from cm4vllm.submission.tree import SUBMISSION
from cm4vllm.submission.tree_writer import tree_kind


def require_given_datasets(
    assets: AssetInputs,
    launch: LaunchSettings,
    benchmark: BenchmarkTerms,
    runs: Sequence[Terms],
    *,
    model: str,
    valid: bool,
    tests: Sequence[str] = (),
) -> tuple[str, ...]:
    """Read the files for `runs` of a `model` (the variation that gives it), and return notes on their prompts.

    A `valid` run takes the benchmark's number of samples alone, a rehearsal any. `tests` are the compliance tests that
    are made. Raises DatasetError, ModelError.
    """
    notes: list[str] = []
    for path, required, modes in _given_files(assets, benchmark, tests, valid=valid):
        if benchmark.media is not None:
            check_file(path, required)
            continue
        rows, folder = checked_rows(path, required), _folder(model)
        if folder is not None and (why := misread_prompts(rows, folder)):
            notes.append(f"{path.name}: its prompts were tokenised for another model ({why}): they are tokenised again")
            rows = with_token_ids(rows, folder, path.name, why)
        if answers := [run.generation.max_tokens for run in runs if run.mode in modes]:
            _require_room(launch, folder, max(len(row["tok_input"]) for row in rows) + max(answers))
    return tuple(notes)


def other_prompts(path: Path, model: str) -> str:
    """Return in words that a file's prompts were tokenised for another model; empty where it is not known, or not so.

    Raises DatasetError, ModelError.
    """
    folder = _folder(model)
    return "" if folder is None else misread_prompts(checked_rows(path, Requirements()), folder)


def _given_files(
    assets: AssetInputs, benchmark: BenchmarkTerms, tests: Sequence[str], *, valid: bool
) -> Iterator[tuple[Path, Requirements, tuple[Mode, ...]]]:
    """Yield each file, its requirements, and the modes of the runs that read it."""
    if name := assets.dataset_path:
        modes = (Mode.ACCURACY,) if benchmark.performance_samples else tuple(Mode)
        yield Path(name), Requirements.evaluation(benchmark, valid), modes
    if name := assets.performance_dataset_path:
        yield Path(name), Requirements.performance(benchmark, valid), (Mode.PERFORMANCE,)
    if name := assets.compliance_dataset_path:
        own = [made for made in (audit(test, benchmark.name) for test in tests) if made.own_dataset]
        for required in [Requirements.compliance(made, benchmark) for made in own] or [Requirements()]:
            yield Path(name), required, (Mode.PERFORMANCE,)


def _folder(model: str) -> Path | None:
    """Return the folder of a model that is on this machine already; None for one that a step provides."""
    kind, _, location = model.partition(".")
    return Path(location) if kind == "_path" else None


def _require_room(launch: LaunchSettings, folder: Path | None, longest: int) -> None:
    """Refuse a prompt that with its answer, together `longest` tokens, is longer than the context, where it is known.

    A given server reports its context when it is asked.
    """
    context = chosen_server(launch).max_model_len
    if context is None and folder is not None and not launch.api_server:
        context = read_checkpoint(folder).max_positions
    require_context(context, longest, folder.name if folder is not None else "")


#: Room for logs, tree and report. A full-length run of both scenarios with 37 tokens a sample left 13 MiB; answers may
#: be as long as the benchmark allows, and a run that is repeated stands beside the old one until it is whole.
_SPACE_BYTES = 512 * 2**20

#: Fields of settings that name files and folders of the user.
_PATHS = (
    *(
        "dataset_path",
        "calibration_path",
        "performance_dataset_path",
        "compliance_dataset_path",
        "livecodebench_path",
        "rules_file",
    ),
    *("inference_src", "grader_src", "nltk_data", "power_src", "system_file"),
    *("power_settings", "power_wiring", "power_supplies"),
)
#: Those that are read hours later otherwise, in the dataset's format.
_DATASETS = _PATHS[:4]
A = TypeVar("A", bound=AssetInputs)


def with_absolute_paths(asked: A) -> A:
    """Return settings whose paths are those from anywhere: later recipes work in folders of their own.

    A model goes by a hub's id, a name of the catalogue, or a folder; with a server that runs, by the name that it has
    there.
    """
    named = {field: str(getattr(asked, field, "")) for field in _PATHS}
    paths = {field: str(typed_path(name).absolute()) for field, name in named.items() if name}
    if asked.vllm_model_name and not asked.api_server and (folder := typed_path(asked.vllm_model_name)).is_dir():
        paths["vllm_model_name"] = str(folder.absolute())
    return replace(asked, **paths)


def of_anywhere(asked: CampaignSettings) -> CampaignSettings:
    """Return a job's settings whose paths are those from anywhere, also of lists and of the server's certificates."""
    settings, ca = with_absolute_paths(asked), asked.servers.api_server_ca
    published = ",".join(map(str, typed_paths(asked.published_results))) if asked.published_results else ""
    servers = replace(asked.servers, api_server_ca=str(typed_path(ca).absolute()) if ca else "")
    return replace(settings, published_results=published, servers=servers)


def require_files(asked: CampaignSettings) -> None:
    """Refuse small files that are not what they should be, and large ones that do not exist.

    Raises UsageError, DatasetError, SubmissionError.
    """
    check_stated(asked.system_file, asked.hw_name)
    RulesInputs(rules_file=asked.rules_file).chosen()
    for field in _DATASETS:
        # A folder is read by the benchmark's own rules, below (require_given_datasets).
        if (name := getattr(asked, field)) and not Path(name).is_dir():
            require_file(Path(name))
    if asked.published_results:
        from cm4vllm.results.result_index import require_published  # with every check of a tree: few jobs name results

        require_published(typed_paths(asked.published_results))


def preflight(job: Job) -> tuple[str, ...]:
    """Read the files that the flags name, see whether the servers they ask for have room here, and return notes.

    Raises UsageError, ModelError, DatasetError, SourceUnavailable, InstallError, PortInUse, DiskFull, NotWritable.
    """
    settings = job.settings
    check_source(job.sources.model, settings.dummy_layers)
    runs = [job.terms(scenario, mode) for scenario in job.scenarios for mode in job.modes]
    notes = require_given_datasets(
        settings,
        settings.launch,
        job.benchmark,
        runs,
        model=job.sources.model,
        valid=not job.rehearsal,
        tests=job.tests,
    )
    if settings.calibration_path:
        check_file(Path(settings.calibration_path), Requirements())
    if settings.inference_src and settings.run_checker:
        open_source(Path(settings.inference_src))
    if settings.nltk_data and job.needs_sentence_model:
        given_model(Path(settings.nltk_data))
    for files in filter(None, (grader(name).problems for name in job.graders)):
        require_problem_files(Path(settings.livecodebench_path), files)
    if job.machine is not None:  # which has a results folder of its own
        require_installable(settings.launch, prepare=True, driver=job.machine.driver)
        return (*notes, *require_fit(job))
    require_server(settings.launch, runs, simulated=bool(settings.rehearse))
    require_power(settings.view(PowerInputs), tree=not job.no_tree)
    require_fit(job)
    require_results_folder(job.out, job.out / LOCK_FILE)
    if not job.no_tree:
        require_replaceable(job.out / SUBMISSION, tree_kind(settings.submitter, "--output_dir"))
    return notes


def require_server(launch: LaunchSettings, runs: Sequence[Terms], *, simulated: bool) -> None:
    """Refuse settings with which no server can be started or asked for `runs` on this machine.

    Raises UsageError, InstallError, PortInUse, ServerUnsuitable.
    """
    require_installable(launch, simulated=simulated)
    require_usable(launch)
    if launch.api_server:
        return
    if not simulated and not launch.container:  # a container has its own
        require_shared_memory()
    longest = max(run.generation.max_tokens for run in runs)
    if launch.max_model_len is not None and launch.max_model_len <= longest:  # whatever the prompt
        raise ServerUnsuitable(
            f"--max_model_len={launch.max_model_len} is too short for {runs[0].benchmark}",
            cause=f"up to {longest} tokens are generated after each prompt",
            remedy="leave it out: the longest prompt with its answer decides then",
        )


def require_answers(launch: LaunchSettings) -> None:
    """Raise ServerUnreachable unless each server at --api_server answers, whatever; what it serves, the run finds."""
    if not launch.api_server:
        return
    access = require_access(launch)
    for url in base_urls(launch.api_server):
        with suppress(ServerUnsuitable):
            served_models(Site(url, launch.api_server_ca, access))


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
