"""One measurement as a recipe asks for it: the records of model, dataset and server in, a LoadGen run out."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from cm4vllm.common import input_types
from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.files import altered_files, bytes_of, writable_folder
from cm4vllm.common.folders.owned_folders import forget, write_noted
from cm4vllm.common.folders.ownership_notes import Kind, path_beside
from cm4vllm.common.progress import warn
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.loadgen.given_conf import rate_in, require_usable_conf
from cm4vllm.loadgen.identity import at_present_places, differences, settings_sha256
from cm4vllm.loadgen.process.runner import USER_CONF, run
from cm4vllm.loadgen.settings import require_interval, require_workers, run_settings
from cm4vllm.loadgen.user_conf import UserConf, user_conf
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.run import RUN_FILE, RunRecord, RunSettings
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import (
    Division,
    ExecutionMode,
    Mode,
    Scenario,
    Terms,
    audit,
    benchmark_terms,
    default_round,
    over_network,
    require_text,
    round_terms,
    terms,
    terms_of_test,
)
from cm4vllm.serving.supervision.death_reasons import death_reason

#: The folder of one run, as an earlier version left it: with the record of a run.
RUN = Kind(
    "a LoadGen run",
    "--output_dir",
    recognised=lambda folder: {"settings", "client", "files"} <= object_of(folder / RUN_FILE).keys(),
    into_working_folder=True,
)

#: The recipes that give the records of a run.
_GIVERS = {
    "model_record": ", as get,ml-model gives it",
    "dataset_record": ", as get,dataset gives it",
    "server_record": ", as run,vllm-server gives it",
}
#: Differences between settings that are named where a run is not kept.
_DIFFERENCES = 4


class RunInputs(Settings, frozen=True, kw_only=True):
    """Inputs that the recipes read from their environment. Paths are those of records that other recipes wrote."""

    scenario: input_types.Scenario
    mode: input_types.RunMode
    round: input_types.Round = default_round()
    model: input_types.Benchmark = "llama3.1-8b"
    division: input_types.Division = "open"
    execution_mode: input_types.ExecutionMode = "test"
    target_qps: Annotated[float | None, Key("CM_MLPERF_LOADGEN_TARGET_QPS")] = None
    target_latency: Annotated[float | None, Key("CM_MLPERF_LOADGEN_TARGET_LATENCY")] = None
    target_qps_source: Annotated[str, Key("CM_MLPERF_LOADGEN_TARGET_QPS_SOURCE")] = "given as target_qps"
    test_query_count: input_types.TestQueryCount = None
    #: Why the main job gives a count of its own.
    shortened: input_types.ShortenedWhy = ""
    max_test_duration: input_types.MaxTestDuration = None
    max_in_flight: input_types.MaxInFlight = None
    stream_interval: Annotated[int | None, Key("CM_VLLM_STREAM_INTERVAL")] = None
    num_workers: input_types.NumWorkers = None
    model_record: input_types.ModelRecordPath = ""
    dataset_record: input_types.DatasetRecordPath = ""
    performance_dataset_record: input_types.PerformanceDatasetRecordPath = ""
    compliance_dataset_record: input_types.ComplianceDatasetRecordPath = ""
    server_record: input_types.ServerRecordPath = ""
    user_conf: Annotated[str, Key("CM_MLPERF_USER_CONF")] = ""
    output_dir: input_types.OutputDir = ""
    pythonpath: Annotated[str, Key("CM_MLPERF_LOADGEN_PYTHONPATH")] = ""
    compliance_test: Annotated[str, Key("CM_MLPERF_LOADGEN_COMPLIANCE_TEST")] = ""
    keep_answers: Annotated[bool, Key("CM_MLPERF_KEEP_ANSWERS")] = False
    accept_restarted_server: input_types.AcceptRestarted = False
    #: Where a search puts the full-length run that passed.
    search_result_dir: Annotated[str, Key("CM_MLPERF_SEARCH_RESULT_DIR")] = ""

    @property
    def dataset(self) -> str:
        """The record of the run's dataset: of its compliance test or of performance runs, where these have their own.

        Empty where none is given.
        """
        if self.compliance_test and audit(self.compliance_test, self.model).own_dataset:
            return self.compliance_dataset_record or self.dataset_record
        performance = Mode.parse(self.mode) is Mode.PERFORMANCE
        return (self.performance_dataset_record if performance else "") or self.dataset_record

    @property
    def terms(self) -> Terms:
        """The rules of the run. Raises UsageError for a round, benchmark, scenario, mode or test that has none."""
        round_name = round_terms(self.round).name
        require_text(benchmark_terms(round_name, self.model))
        rules = terms(
            round_name, self.model, Scenario.parse(self.scenario), Mode.parse(self.mode), Division.parse(self.division)
        )
        return terms_of_test(rules, audit(self.compliance_test, self.model)) if self.compliance_test else rules

    @property
    def records(self) -> dict[str, str]:
        """The paths of the records that a run is made from, each by its flag; empty where none is given."""
        return {"model_record": self.model_record, "dataset_record": self.dataset, "server_record": self.server_record}

    @property
    def folder(self) -> Path:
        """The folder of the run. Raises UsageError where none is given."""
        require_given(output_dir=self.output_dir)
        return Path(self.output_dir).absolute()

    @property
    def generated_conf(self) -> Path:
        """The place of the user.conf that is written for the run.

        It is beside the run's folder, which appears whole when the run has ended, and has that folder's name, so that
        runs side by side have one each; or in the working directory.
        """
        return path_beside(self.folder, f".{USER_CONF}") if self.output_dir else Path.cwd() / USER_CONF

    def forget_generated_conf(self) -> None:
        """Remove the user.conf that was written beside the run's folder: the run has it in its own."""
        if self.output_dir and self.user_conf and Path(self.user_conf) == self.generated_conf:
            forget(self.generated_conf)


def require_run(inputs: RunInputs) -> None:
    """Refuse the inputs of a run that can be refused before its model, dataset and server are known.

    Raises UsageError.
    """
    wanted = inputs.terms
    conf, text = _conf(inputs, wanted, None), _given_conf(inputs)
    if text and wanted.needs_rate and (asked := conf.target_qps) != (aimed := rate_in(text, wanted)):
        warn(
            f"{wanted.scenario}: user.conf has LoadGen aim at {aimed:g} queries/s; the {asked:g} asked for do not count"
        )
    require_workers(inputs.num_workers)
    if inputs.stream_interval is not None:
        require_interval(inputs.terms, inputs.stream_interval)


def write_user_conf(inputs: RunInputs) -> Path:
    """Write the user.conf of a run and return its path."""
    dataset = read_record(Path(inputs.dataset), DatasetRecord) if inputs.dataset else None
    conf, path = _conf(inputs, inputs.terms, dataset), inputs.generated_conf
    writable_folder(path.parent)
    write_noted(path, conf.text)
    return path


def measure(
    inputs: RunInputs, require: Callable[[RunSettings], None] = lambda settings: None, *, audit_config: str = ""
) -> tuple[RunRecord, Path]:
    """Make the run; return its record and the record's path. A run that was in its folder is replaced.

    `require` refuses, before the run, settings of which nothing could be made afterwards. `audit_config` is the text of
    the audit.config of the compliance test that the inputs name. Raises UsageError when something is not given, and
    what `require` and the run raise.
    """
    require_given(output_dir=inputs.output_dir, **inputs.records)
    folder, settings = inputs.folder, settings_of(inputs, audit_config)
    writable_folder(folder.parent)
    require(settings)
    record = run(
        settings,
        folder,
        pythonpath=inputs.pythonpath,
        alive=partial(death_reason, settings.server),
        keep_answers=inputs.keep_answers,
        accept_restarted=inputs.accept_restarted_server,
    )
    inputs.forget_generated_conf()
    return record, folder / RUN_FILE


def _given_conf(inputs: RunInputs) -> str:
    """Return the text of the user.conf that is given, empty where none is.

    Raises UsageError where it cannot be read, and for lines that LoadGen would set nothing by.
    """
    if not inputs.user_conf:
        return ""
    try:
        text = bytes_of(Path(inputs.user_conf)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the user.conf {inputs.user_conf}",
            cause=str(error),
            remedy="name a file that can be read, or none: the rules give one",
        ) from error
    require_usable_conf(text, inputs.terms, ExecutionMode.parse(inputs.execution_mode))
    return text


def settings_of(inputs: RunInputs, audit_config: str = "") -> RunSettings:
    """Return the settings of the run that the inputs describe. Raises UsageError when something is not given."""
    require_given(**inputs.records)
    wanted = inputs.terms
    dataset = read_record(Path(inputs.dataset), DatasetRecord)
    return run_settings(
        _conf(inputs, wanted, dataset),
        model=read_record(Path(inputs.model_record), ModelRecord),
        dataset=dataset,
        server=read_record(Path(inputs.server_record), ServerRecord),
        user_conf=_given_conf(inputs),
        target_qps=_target(inputs, wanted),
        target_qps_source=inputs.target_qps_source,
        shortened=inputs.shortened,
        max_in_flight=inputs.max_in_flight,
        stream_interval=inputs.stream_interval,
        num_workers=inputs.num_workers,
        compliance_test=inputs.compliance_test,
        audit_config=audit_config,
        network=over_network(Division.parse(inputs.division)),
    )


def _conf(inputs: RunInputs, wanted: Terms, dataset: DatasetRecord | None) -> UserConf:
    """Return the settings of user.conf for the inputs of a run."""
    return user_conf(
        wanted,
        ExecutionMode.parse(inputs.execution_mode),
        target_qps=_target(inputs, wanted),
        test_query_count=inputs.test_query_count,
        max_test_duration_s=inputs.max_test_duration,
        dataset_samples=dataset.samples if dataset else None,
    )


def _target(inputs: RunInputs, wanted: Terms) -> float | None:
    """Return the target rate, also of an expected latency in ms. Raises UsageError where a scenario has no such."""
    if inputs.target_latency is None:
        return inputs.target_qps
    if not wanted.one_by_one:
        raise UsageError(
            f"target_latency={inputs.target_latency:g} has no meaning in a {wanted.scenario} run",
            cause="only where each query follows the answer before it LoadGen expects a latency",
            remedy="leave it out; --target_qps of app,mlperf,inference,vllm says what such a run aims at",
        )
    if not inputs.target_latency > 0:
        raise UsageError(f"target_latency={inputs.target_latency:g} is not usable", cause="it must be greater than 0")
    return 1000 / inputs.target_latency


def require_given(**values: str) -> None:
    """Raise UsageError for inputs without a value, all at once: by their flags, with the recipes that give them."""
    missing = [flag for flag, value in values.items() if not value]
    if missing:
        raise UsageError(
            f"not given: {', '.join(f'--{flag}' for flag in missing)}",
            remedy="\n".join(f"--{flag}=...{_GIVERS.get(flag, '')}" for flag in missing),
        )


def earlier_run(folder: Path, settings: RunSettings) -> tuple[RunRecord | None, str]:
    """Return the run in `folder` if it is whole and of the same settings, and valid where it is to be a result.

    Its record then has the places that model, dataset and server have now. Else None and the reason, which is empty
    where there is no run.
    """
    path = folder / RUN_FILE
    if not path.exists():
        return None, ""
    try:
        record = read_record(path, RunRecord)
    except CmError as error:
        return None, f"its record cannot be read: {error.cause}"
    if why_not := _why_not(record, folder, settings):
        return None, why_not
    present = at_present_places(record, settings)
    if present != record:
        write_record(path, present)
    return present, ""


def _why_not(record: RunRecord, folder: Path, settings: RunSettings) -> str:
    """Return why a finished run is not kept, in words; empty if it is."""
    if record.settings_sha256 != settings_sha256(settings):
        changed = "; ".join(differences(record.settings, settings)[:_DIFFERENCES])
        other = "its record was made by a version that compared other settings"
        return f"its settings have changed: {changed}" if changed else other
    if changed_files := altered_files(folder, record.files):
        return f"files of it have been changed or removed: {', '.join(changed_files)}"
    if record.faults:
        return "; ".join(record.faults)
    # A compliance test's run is short by its audit.config, and LoadGen's verdict on its length does not apply; that of
    # a rehearsal is short by itself.
    if settings.mode is Mode.PERFORMANCE and not settings.audit_config and not settings.rehearsal:
        result = read_performance(folder)
        return "" if result.valid else f"LoadGen calls it INVALID: {'; '.join(result.reasons)}"
    return ""
