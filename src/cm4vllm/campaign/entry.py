"""The entry recipe: it checks the job of a command, then plans or executes it."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.campaign.amendments import Amendments
from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks
from cm4vllm.campaign.job_checks.division_checks import division_findings, finding_notes, require_division_rules
from cm4vllm.campaign.job_checks.job_notes import job_notes
from cm4vllm.campaign.job_checks.machine_needs import machine_notes
from cm4vllm.campaign.job_checks.preflight import absolute_paths, preflight, require_files
from cm4vllm.campaign.ledger import read_ledger
from cm4vllm.campaign.planning.expected_times import with_expected_times
from cm4vllm.campaign.planning.run_targets import TARGET_SOURCE
from cm4vllm.campaign.planning.schedule import common_inputs, schedule
from cm4vllm.campaign.planning.steps import ALL, MeasuredTarget, Product, Recipes, Step
from cm4vllm.campaign.published.published_results import published_env, published_notes, published_runs
from cm4vllm.campaign.rehearsal.launch import rehearsal_env, require_rehearsal
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import CmError, UsageError, nearest
from cm4vllm.common.progress import say, warn
from cm4vllm.common.secrets.command_lines import stored_command
from cm4vllm.hardware.machine_limits import machine_limits
from cm4vllm.hardware.readiness import load_sample, unready
from cm4vllm.rules import Mode, benchmark_terms, round_terms
from cm4vllm.serving.launch_settings import LaunchSettings, node_notes

#: No changes by --adr.
UNCHANGED = Amendments()


def prepared(env: Mapping[str, Any], changes: Amendments = UNCHANGED) -> tuple[Job, dict[str, str]]:
    """Return the job that the environment asks for, checked, and the keys that have another value from now on.

    `changes` are those of `--adr`.

    All that can be refused before a step is taken is refused here, for the plan and for the run; what was published of
    the result that is asked for is then said before. Raises CmError.
    """
    changed = dict(changes.settings)
    env = {**env, **changed}
    changed |= published_env(env) | rehearsal_env(env)
    changed |= absolute_paths({**env, **changed})
    env = {**env, **changed}
    require_rehearsal(env)
    require_files(env)
    job = replace(Job.of(CampaignSettings.of(env)), step_inputs=changes.inputs)
    findings = division_findings(job, env)
    job = replace(job, findings=findings, notes=(*published_notes(env), *job_notes(job), *finding_notes(job, findings)))
    steps = schedule(job)
    _require_steps(job, steps)
    for sentence in changes.without_effect(steps):
        warn(sentence)
    if job.space is not None:
        job.space.require_free(env)
    try:
        require_division_rules(job, findings)
        read = preflight(env, job)
        needed = machine_notes(env, job, machine_limits())
    except CmError:
        for note in job.notes:
            say(f"note: {note}")
        raise
    return replace(job, notes=(*job.notes, *read, *node_notes(LaunchSettings.of(env)), *needed)), changed


def _require_steps(job: Job, steps: tuple[Step, ...]) -> None:
    """Raise UsageError for a step of --rerun that the job does not have, or that keeps nothing.

    And for a search for a rate that is asked for where no scenario has one.
    """
    if job.settings.find_target_qps and not any(step.product is Product.SEARCH for step in steps):
        raise UsageError(
            "--find_target_qps finds no rate in this job",
            cause="no performance run is made"
            if Mode.PERFORMANCE not in job.modes
            else f"{', '.join(job.scenarios)}: LoadGen issues the queries without a rate",
            remedy="leave it out, or let the job have a performance run at a rate, as of --scenario=Server",
        )
    known = [step.key for step in steps if step.product not in (None, Product.SERVER)]
    for name in sorted(job.rerun - {ALL}):
        if name not in known:
            raise UsageError(f"--rerun={name} names no step of this job that is kept", remedy=nearest(name, known))


def plan_job(env: Mapping[str, Any], changes: Amendments = UNCHANGED) -> dict[str, Any]:
    """Return the schedule in the form of the engine's hook `plan`. Raises CmError for what the run would refuse."""
    job, changed = prepared(env, changes)
    steps, times = with_expected_times(job, schedule(job))
    for note in (*job.notes, *times, *(f"{finding.field}: {finding.what}; {finding.remedy}" for finding in unready())):
        say(f"note: {note}")
    return {
        "adr": changes.rest,
        "env": {**changed, **common_inputs(job), **_results(job)},
        "steps": planned_steps(job.out, steps),
    }


def input_values(env: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the values of the inputs that MLPerf's rules fix, for the round and benchmark of `env`."""
    settings = CampaignSettings.of(env)
    round_ = round_terms(settings.round)
    values = {"model": list(runnable_benchmarks(round_.name)), "published": list(published_runs())}
    if settings.model in values["model"]:
        benchmark = benchmark_terms(round_.name, settings.model)
        values["scenario"] = [str(scenario) for scenario in benchmark.scenarios]
        values["compliance"] = list(benchmark.compliance)
    return values


def run_job(env: Mapping[str, Any], recipes: Recipes, command: str, changes: Amendments = UNCHANGED) -> dict[str, str]:
    """Execute the job and return what the recipe exports. `recipes` gets the environment of the entry with each step's.

    Raises CmError.
    """
    from cm4vllm.campaign.job import run  # half of all modules, the report's among them: no plan needs them

    job, changed = prepared(env, changes)
    for finding in unready(load=load_sample()):
        warn(f"{finding.field}: {finding.what}; {finding.remedy}")
    run(job, lambda tags, inputs: recipes(tags, {**changed, **inputs}), command, {**env, **changed})
    return _results(job)


def command_line(given: Mapping[str, Any]) -> str:
    """Return the command that the entry was started by, for the records."""
    return stored_command(["cm", "run", "script", *(given.get("cmd") or [f"--tags={given.get('tags', '')}"])])


def _results(job: Job) -> dict[str, str]:
    return {"CM_MLPERF_RESULTS_DIR": str(job.out), "CM_MLPERF_SUMMARY": str(job.out / "summary.html")}


def planned_steps(out: Path, steps: tuple[Step, ...]) -> list[dict[str, Any]]:
    """Return a schedule in the form of the engine's hook `plan`, with how long its steps took in earlier commands."""
    with contextlib.suppress(OSError):  # of a ledger that cannot be read nothing is known
        steps = read_ledger(out).with_durations(steps)
    return [_as_plan(step, before) for step, before in zip(steps, (None, *steps), strict=False)]


def _as_plan(step: Step, before: Step | None) -> dict[str, Any]:
    """Return a step in the form of the engine's hook `plan`; the step `before` already shows the values of both."""
    measured = {key: value for key, value in step.inputs.items() if isinstance(value, MeasuredTarget)}
    new = [value for key, value in measured.items() if before is None or before.inputs.get(key) != value]
    unknown = {name: f"the step {value.step}" for key, value in measured.items() for name in (key, TARGET_SOURCE)}
    notes = [
        f"gives {step.gives}; {f'takes {step.duration.words}' if step.duration else 'its duration is not known'}",
        *(f"{value.subject}: {value.words}" for value in new),
        *(f"then checks that {check}" for check in step.checks),
        *([f"the job goes on if its source cannot be reached: {step.without}"] if step.without else []),
        *step.notes,
    ]
    return {
        "name": step.name,
        "tags": step.tags,
        "names": list(step.names),
        "unknown": unknown,
        "notes": notes,
        "env": {key: value for key, value in step.inputs.items() if isinstance(value, str)},
        "only_if": step.condition.words if step.condition else "",
        "brings": [
            {"how": bring.how, "what": bring.what, "disk_bytes": bring.disk_bytes, "measured": bring.source}
            for bring in step.brings
        ],
        "data": msgspec.to_builtins(step),
    }
