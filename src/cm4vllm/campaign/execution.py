"""The execution of a schedule: each step by its recipe, unless an earlier command left its result.

A recipe is reached by its tags through the function that the entry recipe hands in. Which steps there are, and in which
order, is the schedule's alone; what became of each is in the ledger.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cm4vllm.campaign.job_checks.preflight import require_results_folder
from cm4vllm.campaign.kept_results import KeptResult, forget_answers, kept_result, set_aside
from cm4vllm.campaign.ledger import LEDGER_FILE, LOCK_FILE, Entry, LedgerFile, State, only_one
from cm4vllm.campaign.live.monitor import watched
from cm4vllm.campaign.live.status import STATUS_FILE, JobStatus, steps_of
from cm4vllm.campaign.own_server import OwnServer
from cm4vllm.campaign.planning.minutes import Estimate, Minutes
from cm4vllm.campaign.planning.step_environment import Records, RunStep, SearchExports, Shortened, StepEnvironment
from cm4vllm.campaign.planning.step_values import CHECKS, Values
from cm4vllm.campaign.planning.steps import Duration, Product, Recipes, ScheduledJob, Step, names_of, result_folder
from cm4vllm.common.clock import now
from cm4vllm.common.errors import (
    ClockChanged,
    CmError,
    EnvironmentBroken,
    InstallError,
    RunIncomplete,
    ServerDied,
    ServerStuck,
    SourceUnavailable,
)
from cm4vllm.common.files import writable_folder
from cm4vllm.common.folders.owned_folders import make_way
from cm4vllm.common.progress import say, warn, with_outlook
from cm4vllm.common.records import read_record
from cm4vllm.common.settings import Settings
from cm4vllm.common.units import duration_text
from cm4vllm.compliance.audit import run_settings_of
from cm4vllm.loadgen.measurement import RunInputs
from cm4vllm.loadgen.process.first_rate import first_rate
from cm4vllm.records.server import ServerRecord

R = TypeVar("R")

_KILLED = "the command ended without reporting it: it was killed, or the machine stopped"
_NOT_NEEDED = "no step needed it: it was not started"
_BY_THE_SEARCH = "made by the search, which ended with it"
#: What a job writes into its results folder again and again, beside records, which are known by their fields.
_WRITTEN = (STATUS_FILE, "summary.html", "summary.csv", "curve.html")


def recipes_of(run: Callable[[dict[str, Any]], dict[str, Any]], adr: Any = None) -> Recipes:
    """Return a function that runs the recipe of a step by the engine's `run`.

    A recipe that finds the environment of vLLM broken is run once more, which makes the environment again.
    `adr` are the changes of `--adr` that only the engine applies.
    """

    def recipes(tags: str, inputs: Mapping[str, str]) -> dict[str, str]:
        asked = {"tags": tags, "names": names_of(tags), "env": dict(inputs), "adr": adr or {}, "quiet": True}
        done = run(asked)
        if done["return"] == EnvironmentBroken.exit_code:
            warn(f"vLLM's environment is made again: {CmError.again(done['return'], done['error']).in_one_line}")
            done = run(asked)
        if done["return"]:
            raise CmError.again(done["return"], done["error"])
        return {key: value for key, value in done["new_env"].items() if isinstance(value, str)}

    return recipes


def run_schedule(
    job: ScheduledJob,
    steps: Iterable[Step],
    environment: StepEnvironment,
    recipes: Recipes,
    *,
    finish: Callable[[Execution], R],
    record: Callable[[Execution], bool],
    minutes: Minutes | None = None,
) -> R:
    """Take the steps in their order, with a live view, and return what `finish` returns after the last.

    `environment` holds the inputs of all steps, and gets what they export. `record` writes the record of the job
    as soon as it can, and says whether it did. `minutes` bound a rehearsal. Raises CmError for what failed.
    """
    for note in job.notes:
        say(f"note: {note}")
    require_results_folder(job.out, job.out / LOCK_FILE)
    writable_folder(job.out)
    with only_one(job.out / LOCK_FILE, job.out):
        if not (job.out / LEDGER_FILE).exists():  # from then on the ledger shows that they are the job's own
            for name in _WRITTEN:
                make_way(job.out / name)
        execution = Execution(job, steps, environment, recipes, record, minutes)
        execution.begin()
        status = JobStatus(job.title, job.notices, execution.shown, lambda: minutes.left_s if minutes else None)
        execution.outlook = lambda: status.read().outlook
        with watched(status, job.out, job.serve) as monitor, with_outlook(execution.outlook):
            with monitor.drawn():
                for step in execution.steps.values():
                    execution.take(step)
                execution.note_unneeded()
            if minutes is not None and minutes.exceeded:
                warn(minutes.exceeded)
            return finish(execution)


class Execution:
    """The state of an execution while its steps run."""

    def __init__(
        self,
        job: ScheduledJob,
        steps: Iterable[Step],
        environment: StepEnvironment,
        recipes: Recipes,
        record: Callable[[Execution], bool],
        minutes: Minutes | None = None,
    ) -> None:
        self.job = job
        self.minutes = minutes
        self.recipes = recipes
        self.record = record
        self.started = now()
        self.steps = {step.name: step for step in steps}
        self.environment = environment
        self.values = Values(job.out, environment, self.steps)
        self.file = LedgerFile(job.out, f"{self.started} {os.getpid()}")
        self.server: OwnServer | None = None
        self.failure: CmError | None = None
        self.is_recorded = False
        self.outlook: Callable[[], str] = str
        self.shown = steps_of(tuple(self.steps.values()), self.file, self._expected_duration)

    def begin(self) -> None:
        """Set aside what a command that was killed has left, and enter all steps as planned."""
        if self.file.torn:
            warn(f"the last line of the ledger was torn; it is kept in {self.file.torn}")
        killed = [state.last for state in self.file.ledger.states.values() if state.last.state is State.RUNNING]
        for entry in killed:
            left = set_aside(self.job.out, entry.step, entry.folder)
            self.file.enter(entry.step, State.ABORTED, attempt=entry.attempt, why=_KILLED, left=left)
            say(f"{entry.step}: an earlier command was killed during it" + (f"; what it left: {left}" if left else ""))
        self.file.append(
            [
                Entry(run="", at=now(), step=step.name, state=State.PLANNED, tags=step.tags)
                for step in self.steps.values()
            ]
        )

    def take(self, step: Step) -> None:
        """Take one step, unless its condition does not hold or its result is there, and enter the outcome."""
        if step.condition is not None and not self.values.holds(step.condition):
            self._enter(step, State.LEFT_OUT, why=f"it is run only if {step.condition.words}")
            if self.minutes is not None:
                self.minutes.ended(step)
            return
        inputs = self.values.inputs(step)
        if step.product is Product.SERVER:
            if self.server is not None:  # the next steps use another one
                self.note_unneeded()
                self.server.end(self.environment)
            self.server = OwnServer(step, inputs, self._attempt)
            if self.server.can_wait(self.recipes, self.environment):
                return
        before = self._as_before(step)
        if isinstance(inputs, RunStep):
            inputs = inputs.shorter(before)
        earlier, why = self._kept_result(step, inputs)
        if step.product is Product.RUN and (earlier.exports is not None or self.job.reruns(step.name)):
            forget_answers(result_folder(inputs))
        if earlier.exports is not None:
            say(f"{step.name}: kept{f', {why}' if why else ': already done with the same inputs'}")
            self._good(step, State.KEPT, earlier.exports, inputs=inputs, digest=earlier.digest, why=why)
            return
        if why:
            say(f"{step.name}: done again: {why}")
        try:
            self._make(step, *self._shortened_inputs(step, inputs, before, earlier.digest), why)
        except CmError as error:
            self._failed(step, error)

    # --- the minutes of a rehearsal ---

    def _as_before(self, step: Step) -> Shortened | None:
        """Return by what a run was shorter in an earlier command, so that its result is found again."""
        state = self.file.ledger.states.get(step.name)
        if self.minutes is None or step.product is not Product.RUN or state is None:
            return None
        return self.minutes.as_before(Shortened.of(state.last.inputs))

    def _shortened_inputs(
        self, step: Step, inputs: Settings, before: Shortened | None, digest: str
    ) -> tuple[Settings, str]:
        """Return the inputs of a run, as short as the minutes of the job ask for, and their digest. Raises CmError."""
        whole = self.values.inputs(step)
        if self.minutes is None or step.product is not Product.RUN or not isinstance(whole, RunStep):
            return inputs, digest
        self._need_server(step)
        self.minutes.begin(self._started_s())
        sized = whole.shorter(self.minutes.sized(step, whole, self._estimate(step, whole), before))
        if sized.shortened:
            say(f"{step.name}: {sized.shortened}")
        return sized, digest if sized == inputs else self._kept_result(step, sized)[0].digest

    def _estimate(self, step: Step, inputs: RunStep) -> Estimate:
        """Return a function that sends some requests of the run with these inputs."""

        def estimate(count: int, at_a_time: int, longest_s: float) -> float | None:
            try:
                settings = run_settings_of(self.environment.read(RunInputs, step.env(inputs)))
                return first_rate(settings, count, at_a_time=at_a_time, longest_s=longest_s)
            except CmError:  # the run itself reports it
                return None

        return estimate

    def _expected_duration(self, step: Step) -> Duration | None:
        """Return how long a run takes by the rates so far, once the minutes of the job have begun."""
        return None if self.minutes is None or self.minutes.left_s is None else self.minutes.expected(step)

    def _started_s(self) -> float:
        """Return the seconds that the server of the job took to start, 0 where this command did not start it."""
        if self.server is not None and self.server.was_needed:
            with contextlib.suppress(CmError):
                return (
                    read_record(Path(self.environment.read(Records).server_record), ServerRecord).ready_after_s or 0.0
                )
        return 0.0

    def _need_server(self, step: Step) -> None:
        if self.server is not None and step.product is not None and step.product.asks_server:
            self.server.need()

    def _print_time_left(self, step: Step) -> None:
        """Print how long a step of measuring and the rest of the job take, as far as it is known."""
        if step.product is None or not step.product.asks_server:
            return
        now = next(status for status in self.shown() if status.name == step.name)
        took = f"{'at least' if now.at_least else 'about'} {duration_text(now.expected_s)}" if now.expected_s else ""
        if words := "; ".join(filter(None, (took, self.outlook()))):
            say(f"{step.name}: {words}")

    def note_unneeded(self) -> None:
        """Enter the step of a server that no step needed as kept."""
        if self.server is not None and not self.server.was_needed:
            self._enter(self.server.step, State.KEPT, why=_NOT_NEEDED)

    def _kept_result(self, step: Step, inputs: Settings) -> tuple[KeptResult, str]:
        """Return the result that an earlier command left of a step, and in words why it is kept or not."""
        left = kept_result(step, inputs, self.environment, self.file.ledger.digest(step.name))
        searched = self.environment.read(SearchExports).result
        if left.exports is not None and searched and Path(searched) == result_folder(inputs):
            return left, _BY_THE_SEARCH
        if left.exports is not None and self.job.reruns(step.name):
            return KeptResult(left.digest), "asked for with --rerun"
        return left, left.why_not

    def _make(self, step: Step, inputs: Settings, digest: str, why: str) -> None:
        """Take a step by its recipe; where its client or a server that is ours ends, again. Raises CmError."""
        for note in step.notes:
            say(f"{step.name}: {note}")
        for number in range(1, self.job.attempts + 1):
            self._need_server(step)
            self._print_time_left(step)
            try:
                self._attempt(step, inputs, digest, why)
                return
            except (ClockChanged, RunIncomplete) as error:
                if number == self.job.attempts:
                    raise
                warn(f"{step.name}: attempt {number} of {self.job.attempts} is made again: {error.what}")
            except (ServerDied, ServerStuck) as error:
                if self.server is None or step is self.server.step or number == self.job.attempts:
                    raise
                warn(
                    f"{step.name}: attempt {number} of {self.job.attempts} is INVALID, and the server is "
                    f"started again: {error.what.splitlines()[0]}"
                )
                self.server.replace(self.environment)

    def _attempt(self, step: Step, inputs: Settings, digest: str = "", why: str = "") -> None:
        """Run the recipe of a step once, and enter how it began and how it ended. Raises what the recipe raises."""
        attempt, since = self.file.ledger.attempts(step.name) + 1, time.monotonic()
        self._enter(step, State.RUNNING, inputs=inputs, digest=digest, attempt=attempt, why=why)
        try:
            exports = self.recipes(step.tags, self.environment.of_step(step, inputs))
            for check in step.checks:
                CHECKS[check](self.environment.read(Records, exports))
        except BaseException as error:
            state = State.FAILED if isinstance(error, Exception) else State.ABORTED
            with contextlib.suppress(CmError, OSError):  # whatever failed first is what is reported
                left = set_aside(
                    self.job.out,
                    step.name,
                    result_folder(inputs),
                    server_died=isinstance(error, ServerDied | ServerStuck),
                )
                self._enter(
                    step,
                    state,
                    attempt=attempt,
                    took_s=time.monotonic() - since,
                    left=left,
                    why=str(error) or type(error).__name__,
                )
            raise
        self._good(step, State.DONE, exports, digest=digest, attempt=attempt, took_s=time.monotonic() - since)

    def _failed(self, step: Step, error: CmError) -> None:
        if step.without and isinstance(error, (SourceUnavailable, InstallError)):
            warn(f"{step.without}: {error.in_one_line}")
        elif step.report_first:
            self.failure = error
        else:
            raise error

    def _good(self, step: Step, state: State, exports: Settings | Mapping[str, str], **fields: Any) -> None:
        self.environment.take(exports)
        self.values.good.add(step.name)
        self._enter(step, state, **fields)
        self._note_minutes(step, fields.get("took_s"))
        self.is_recorded = self.is_recorded or self.record(self)

    def _note_minutes(self, step: Step, took_s: float | None) -> None:
        """Note for the minutes of the job that a step is done, and the rate that it measured."""
        if self.minutes is None:
            return
        if step.product is not Product.RUN:
            self.minutes.ended(step)
            return
        try:
            record, rate = self.values.run(step.name), self.values.rate(step.name)
        except CmError:  # a run without a rate
            self.minutes.ended(step, took_s)
            return
        self.minutes.ended(step, took_s, record.machine_load.others if record.machine_load else None)
        self.minutes.measured(step, rate, (took_s or 0.0) - record.duration_s)

    def _enter(
        self, step: Step, state: State, *, inputs: Settings | None = None, took_s: float | None = None, **fields: Any
    ) -> None:
        took_s = None if took_s is None else round(took_s, 3)
        self.file.enter(
            step.name, state, tags=step.tags, took_s=took_s, inputs=step.env(inputs) if inputs else {}, **fields
        )
