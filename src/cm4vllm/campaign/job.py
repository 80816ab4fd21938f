"""The execution of a schedule: each step by its recipe, then the report.

A recipe is reached by its tags through the function that the entry recipe hands in. Which steps there are, and in which
order, is the schedule's alone.
"""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Protocol

from cm4vllm import __version__
from cm4vllm.assets.models import TINY_NAME
from cm4vllm.assets.records import ModelRecord
from cm4vllm.campaign.preflight import LOCK_FILE, require_results_folder
from cm4vllm.campaign.records import STEPS_FILE, Outcome, StepRecord, StepsRecord
from cm4vllm.campaign.schedule import FOLDER, TARGET_SOURCE, common_inputs, schedule
from cm4vllm.campaign.search.records import SEARCH_FILE, SearchRecord
from cm4vllm.campaign.settings import Job
from cm4vllm.campaign.steps import Check, Condition, MeasuredTarget, Need, Step
from cm4vllm.campaign.targets import TargetQps, measured_rate, target_of
from cm4vllm.common.errors import CmError, InvalidResult, SourceUnavailable, UsageError
from cm4vllm.common.files import writable_folder
from cm4vllm.common.program import commit_of_this_repository
from cm4vllm.common.progress import say, warn
from cm4vllm.common.records import OtherSchema, now, read_record, write_record
from cm4vllm.common.units import SamplesPerSecond
from cm4vllm.loadgen.logs import read_performance
from cm4vllm.loadgen.records import RUN_FILE, RunRecord
from cm4vllm.report.model import Report, load
from cm4vllm.report.summary import write_summary
from cm4vllm.report.table import final_table
from cm4vllm.results.records import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.rules import Division, Mode
from cm4vllm.serving.dialects import check_tokenizer, require_division
from cm4vllm.serving.probe import check_vocabulary
from cm4vllm.serving.records import ServerRecord

__all__ = ["Recipes", "run"]

_EXPORTED = re.compile(r"<<<(\w+)>>>")


class Recipes(Protocol):
    """Runs the recipe with these tags on top of this environment, and returns what it exports. Raises CmError."""

    def __call__(self, tags: str, env: Mapping[str, str]) -> Mapping[str, str]: ...


def run(job: Job, recipes: Recipes, command: str) -> Report:
    """Execute the job's schedule and print its table. Raises CmError for what failed, after all that can be shown.

    `command` is the line that started it, for the records.
    """
    for note in job.notes:
        say(f"note: {note}")
    require_results_folder(job.out)
    writable_folder(job.out)
    with _only_one(job.out):
        execution = _Execution(job, recipes, command)
        for step in execution.steps.values():
            execution.take(step)
        return _report(job, execution)


class _Execution:
    """What is known while the steps are taken: what they exported, and the outcome of each."""

    def __init__(self, job: Job, recipes: Recipes, command: str) -> None:
        self.job = job
        self.recipes = recipes
        self.command = command
        self.started = now()
        self.steps = {step.name: step for step in schedule(job)}
        self.env = common_inputs(job)
        self.taken: dict[str, StepRecord] = {}
        self.failure: CmError | None = None
        self.has_campaign = False

    def take(self, step: Step) -> None:
        """Run one step, unless its condition does not hold, and record the outcome."""
        if step.condition is not None and not self._holds(step.condition):
            self._record(step, {}, Outcome.LEFT_OUT, why=f"it is run only if {step.condition.words}")
            return
        for note in step.notes:
            say(f"{step.name}: {note}")
        inputs, since = self._inputs(step), time.monotonic()
        try:
            self.env.update(self.recipes(step.tags, {**self.env, **inputs}))
            for check in step.checks:
                _CHECKS[check](self.env)
        except CmError as error:
            self._record(step, inputs, Outcome.FAILED, since, error.what)
            self._failed(step, error)
        else:
            self._record(step, inputs, Outcome.DONE, since)
            self._record_campaign()

    def _failed(self, step: Step, error: CmError) -> None:
        if step.without and isinstance(error, SourceUnavailable):
            warn(f"{step.without}\n{error}")
        elif step.report_first:
            self.failure = error
        else:
            raise error

    # --- records -----------------------------------------------------------------------------------------------------

    def _record(self, step: Step, inputs: Mapping[str, str], outcome: Outcome, since: float | None = None,
                why: str = "") -> None:
        took = 0.0 if since is None else time.monotonic() - since
        self.taken[step.name] = StepRecord(name=step.name, tags=step.tags, inputs=dict(inputs), outcome=outcome,
                                           ended_at=now(), took_s=round(took, 3), why=why)
        write_record(self.job.out / STEPS_FILE, StepsRecord(steps=list(self.taken.values())))

    def _record_campaign(self) -> None:
        """Write what the command resolved to, as soon as it is known which system and model are measured."""
        system, model = self.env.get("CM_SUT_NAME", ""), self.env.get("CM_ML_MODEL_NAME", "")
        if self.has_campaign or not (system and model):
            return
        self.has_campaign = True
        write_record(self.job.out / CAMPAIGN_FILE, CampaignRecord(
            command=self.command, cm_version=metadata.version("cmind"), cm4vllm_version=__version__,
            commit=commit_of_this_repository(), division=self.job.division, submitter=self.job.settings.submitter,
            round=self.job.round.name, benchmark=self.job.benchmark.name, execution_mode=self.job.execution_mode,
            started_at=self.started, system=system, model=model,
        ))

    # --- what only the run can tell ----------------------------------------------------------------------------------

    def _inputs(self, step: Step) -> dict[str, str]:
        """Return a step's inputs with every value filled in."""
        inputs: dict[str, str] = {}
        for key, value in step.inputs.items():
            if isinstance(value, MeasuredTarget):
                target = self._target(value)
                inputs |= {key: str(target.value), TARGET_SOURCE: target.source}
            else:
                inputs[key] = self._filled(value)
        return inputs

    def _filled(self, value: str) -> str:
        return _EXPORTED.sub(lambda found: self.env.get(found[1], ""), value)

    def _target(self, wanted: MeasuredTarget) -> TargetQps:
        earlier = self._earlier_target(wanted.kept_from) if wanted.kept_from else None
        if earlier is None and wanted.found:
            return self._found_target(wanted)
        return earlier or target_of(self._rate(wanted.step), wanted.share, wanted.step, one_by_one=wanted.one_by_one)

    def _found_target(self, wanted: MeasuredTarget) -> TargetQps:
        found = read_record(self._folder(wanted.step) / SEARCH_FILE, SearchRecord)
        rate = found.lowered(wanted.lowered)
        below = f"; lowered to {rate:g}, since a run missed a limit" if wanted.lowered else ""
        return TargetQps(rate, f"{wanted.step}: {found.words}{below}")

    def _folder(self, name: str) -> Path:
        """Return the folder of the LoadGen run that the step `name` makes."""
        return Path(self._filled(str(self.steps[name].inputs[FOLDER])))

    def _rate(self, name: str) -> SamplesPerSecond:
        """Return the samples/s that a step measured."""
        folder = self._folder(name)
        record = read_record(folder / RUN_FILE, RunRecord)
        performance = record.settings.mode is Mode.PERFORMANCE
        return read_performance(folder).samples_per_second if performance else measured_rate(record)

    def _earlier_target(self, place: str) -> TargetQps | None:
        """Return the target of a valid result of an earlier run in a folder below the results."""
        folder = self.job.out / self._filled(place)
        if not (folder / RUN_FILE).exists():
            return None
        try:
            settings = read_record(folder / RUN_FILE, RunRecord).settings
        except OtherSchema:  # the run that follows says so, and measures again
            return None
        return TargetQps(settings.target_qps, settings.target_qps_source) if read_performance(folder).valid else None

    def _holds(self, condition: Condition) -> bool:
        return any(_NEEDS[condition.need](self, one) for one in condition.of)

    def has_ended_well(self, name: str) -> bool:
        return name in self.taken and self.taken[name].outcome is Outcome.DONE

    def was_too_short(self, name: str) -> bool:
        """Say whether a performance run ended before the duration that the rules ask, and if so tell the user."""
        result = read_performance(self._folder(name))
        if result.duration >= result.min_duration:
            return False
        say(f"{name} ended after {result.duration}, before the {result.min_duration} that the rules require: the "
            "server was "
            "faster than in the run before. It is repeated, sized by the rate just measured")
        return True

    def missed_limits(self, name: str) -> bool:
        """Say whether a performance run went on for long enough and is invalid, and if so report it."""
        result = read_performance(self._folder(name))
        if result.valid or result.duration < result.min_duration:
            return False
        say(f"{name} is not valid at {result.target_qps:g} queries/s: {'; '.join(result.reasons)}. It is repeated at "
            "the "
            "next lower rate that the search can distinguish from it")
        return True

    def has_no_earlier_result(self, place: str) -> bool:
        return self._earlier_target(place) is None


_NEEDS: Mapping[Need, Callable[[_Execution, str], bool]] = {
    Need.ENDED_WELL: _Execution.has_ended_well,
    Need.TOO_SHORT: _Execution.was_too_short,
    Need.MISSED_LIMITS: _Execution.missed_limits,
    Need.NO_EARLIER_RESULT: _Execution.has_no_earlier_result,
}


def _require_stand_in(env: Mapping[str, str]) -> None:
    """Raise UsageError unless a server for which no model was named serves the stand-in."""
    server = read_record(Path(env["CM_VLLM_SERVER_RECORD"]), ServerRecord)
    if server.model_name != TINY_NAME:
        raise UsageError(
            f"the server at {server.endpoint} serves {server.model_name}, and no model was named",
            cause="its files describe the result, and its dataset is the benchmark's: the stand-in's files and "
                  "dataset would "
            "be used instead",
            remedy=f"name it: --vllm_model_name={server.model_name}, if that is its hub id or its name in the "
            "catalogue;\notherwise with its files: --tags=run-mlperf,inference,_path.FOLDER; _tiny says that it is the "
            "stand-in")


def _require_vocabulary(env: Mapping[str, str]) -> None:
    server = read_record(Path(env["CM_VLLM_SERVER_RECORD"]), ServerRecord)
    model = read_record(Path(env["CM_ML_MODEL_RECORD"]), ModelRecord)
    require_division(server, Division.parse(env["CM_MLPERF_SUBMISSION_DIVISION"]))
    check_vocabulary(server, model)
    check_tokenizer(server, model)


_CHECKS: Mapping[Check, Callable[[Mapping[str, str]], None]] = {
    Check.NAMED_MODEL: _require_stand_in,
    Check.VOCABULARY: _require_vocabulary,
}


def _report(job: Job, execution: _Execution) -> Report:
    """Write the pages and print the table; then raise the error of the checkers, or of the result itself."""
    if set(job.modes) != set(Mode):
        say("no submission tree: it needs an accuracy and a performance run of each scenario")
    report = load(job.out)
    write_summary(report)
    print(final_table(report), flush=True)
    if execution.failure is not None:
        raise execution.failure
    invalid = [f"{run.scenario}: {'; '.join(run.reasons)}" for run in report.invalid_results]
    if invalid and not job.rehearsal:
        raise InvalidResult("the rules call this result invalid", cause="\n".join(invalid),
                            remedy="the report names the limit that was missed; a lower --server_target_qps, a higher "
                            "--offline_target_qps or a lower --singlestream_target_latency usually helps")
    return report


@contextmanager
def _only_one(out: Path) -> Iterator[None]:
    """Keep a second run out of the same results folder while this one lasts. Raises UsageError."""
    with (out / LOCK_FILE).open("w", encoding="utf-8") as lock:
        for left in range(3, -1, -1):  # a plan holds the lock for a moment, to see whether a run has it
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    require_results_folder(out)
                    raise
                time.sleep(0.1)
        yield
