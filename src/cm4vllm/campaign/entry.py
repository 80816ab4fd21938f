"""The entry recipe: it checks the job of a command, then plans or executes it."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.campaign.amendments import Amendments
from cm4vllm.campaign.job_checks import of_division
from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks
from cm4vllm.campaign.job_checks.job_notes import job_notes, machine_notes
from cm4vllm.campaign.job_checks.of_division.job_rules import JobFacts
from cm4vllm.campaign.job_checks.other_machine import needs_there, with_machine, with_other_machine
from cm4vllm.campaign.job_checks.preflight import of_anywhere, preflight, require_answers, require_files
from cm4vllm.campaign.ledger import read_ledger
from cm4vllm.campaign.planning.expected_times import hours_words, with_expected_times
from cm4vllm.campaign.planning.schedule import environment_of, schedule
from cm4vllm.campaign.planning.step_environment import NOTHING, JobExports, differing
from cm4vllm.campaign.planning.steps import ALL, MeasuredTarget, Product, Recipes, Step, given_values
from cm4vllm.campaign.published.published_results import published_notes, published_runs, published_settings
from cm4vllm.campaign.rehearsal.launch import SimulatedSettings, rehearsed_benchmark, require_rehearsal
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.checking.checks import checks_in
from cm4vllm.common.checking.findings import Finding, Rule
from cm4vllm.common.errors import CmError, UsageError, nearest
from cm4vllm.common.progress import say, warn
from cm4vllm.common.secrets.command_lines import stored_command
from cm4vllm.common.settings import env_keys
from cm4vllm.hardware.readiness import load_sample, machine_limits, unready
from cm4vllm.loadgen.measurement import RunInputs
from cm4vllm.rules import ExecutionMode, Mode, benchmark_terms, division_rules, round_terms
from cm4vllm.serving.launch_settings import node_notes, vllm_notes

#: Rules that say what kind of system is measured, which a rehearsal needs as well as a result.
_OF_THE_SYSTEM = frozenset({"DATACENTER", "SEPARATE"})


def division_findings(job: Job, root: Path = Path("/")) -> tuple[Finding, ...]:
    """Return all that is known to be against the rules of a job's division; nothing in a division without rules.

    The job itself keeps the rules without a check: it asks for the lengths and runs the tests that they state, asks the
    nodes for their names before each run, and draws the diagram of the machines. `root` holds the /proc and /sys of
    this machine.
    """
    facts, checks = JobFacts(job, root), checks_in(of_division.__name__)
    return tuple(
        replace(checks[code].finding(fault), rule=Rule(rule.text, rule.source))
        for code, rule in division_rules(job.division, job.category).items()
        if code in checks
        for fault in checks[code].function(facts)
    )


def require_division_rules(job: Job, findings: tuple[Finding, ...]) -> None:
    """Raise UsageError for a result that the rules of its division forbid. A rehearsal is not a result.

    What a rehearsal cannot stand in for is refused in one, too: a system that is none of the division's kind.
    """
    if job.rehearsal:
        findings = tuple(finding for finding in findings if finding.code in _OF_THE_SYSTEM)
    if findings:
        never = ", ".join(dict.fromkeys(finding.code for finding in findings if not finding.remedy))
        remedies = dict.fromkeys(
            [
                *([f"{never}: cannot be met; rehearse the division with --execution_mode=test"] if never else []),
                *(finding.remedy for finding in findings if finding.remedy),
                "or give --division=open",
            ]
        )
        raise UsageError(
            f"this job cannot give a {'rehearsal' if job.rehearsal else 'result'} of the {job.division} division",
            cause="\n".join(_words(finding) for finding in findings),
            remedy="\n".join(remedies),
        )


def finding_notes(job: Job, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Return the note of a rehearsal on the rules that it does not keep."""
    if not (findings and job.rehearsal):
        return ()
    return (
        *(f"{job.division} division, a valid run would be refused: {_words(finding)}" for finding in findings),
        f"no submission tree: one of the {job.division} division is made of jobs that keep these rules",
    )


def _words(finding: Finding) -> str:
    return f"{finding.what}\n  rule {finding.code}: {finding.rule.text} ({finding.rule.source})"


#: No changes by --adr.
UNCHANGED = Amendments()


def checked_job(asked: CampaignSettings, changes: Amendments = UNCHANGED, *, prepare: bool = False) -> Job:
    """Return the job that the settings ask for, checked. `changes` are those of `--adr`; `prepare` only gets its parts.

    All that can be refused before a step is taken is refused here, for the plan and for the run; what was published of
    the result that is asked for is then said before. Of a plan for another machine that machine is judged, and nothing
    of this one. Raises CmError.
    """
    settings, machine = with_machine(of_anywhere(_with_profile_benchmark(published_settings(asked))), prepare=prepare)
    require_rehearsal(
        settings.view(SimulatedSettings),
        differing(settings),
        valid=ExecutionMode.parse(settings.execution_mode) is ExecutionMode.VALID,
    )
    require_files(settings)
    job = replace(Job.of(settings), step_inputs=changes.inputs, machine=machine)
    findings = division_findings(job)
    job = replace(
        job, findings=findings, notes=(*published_notes(settings), *job_notes(job), *finding_notes(job, findings))
    )
    steps = schedule(job)
    _require_steps(job, steps)
    for sentence in changes.without_effect(steps):
        warn(sentence)
    if job.space is not None:
        job.space.require_free(settings.launch.server)
    try:
        require_division_rules(job, findings)
        read = preflight(job)
        needed = machine_notes(job, machine_limits()) if machine is None else needs_there(job)
        if machine is None:
            require_answers(settings.launch)
    except CmError as error:
        for note in job.notes:
            say(f"note: {note}")
        raise with_other_machine(error, settings) from None
    nodes = node_notes(settings.launch) if machine is None else ()
    installed = () if settings.rehearse else vllm_notes(settings.launch)
    return replace(job, notes=(*job.notes, *read, *installed, *nodes, *needed))


def _with_profile_benchmark(asked: CampaignSettings) -> CampaignSettings:
    """Return settings with the benchmark that the profile of --rehearse is for. Raises UsageError."""
    if not asked.rehearse:
        return asked
    model, profile = rehearsed_benchmark(asked.rehearse, asked.model, asked.launch)
    return msgspec.structs.replace(asked, model=model, rehearse=profile)


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


def plan_job(asked: CampaignSettings, changes: Amendments = UNCHANGED) -> dict[str, Any]:
    """Return the schedule in the form of the engine's hook `plan`. Raises CmError for what the run would refuse."""
    job = checked_job(asked, changes)
    steps, times = with_expected_times(job, schedule(job))
    if job.machine is not None:
        say(f"a plan for another machine: {job.machine.words}. Nothing of this one is counted or judged")
    here = unready() if job.machine is None else ()
    for note in (*job.notes, *times, *(f"{finding.field}: {finding.what}; {finding.remedy}" for finding in here)):
        say(f"note: {note}")
    return {
        "adr": changes.rest,
        "env": environment_of(job).values | _results(job).env(),
        "steps": planned_steps(job.out, steps, kept=job.machine is None),
        "takes": hours_words(job, steps),
        "elsewhere": job.machine is not None,
    }


def input_values(asked: CampaignSettings) -> dict[str, list[str]]:
    """Return the values of the inputs that MLPerf's rules fix, for the round and benchmark that are asked for."""
    round_ = round_terms(asked.round)
    values = {"model": list(runnable_benchmarks(round_.name)), "published": list(published_runs())}
    if asked.model in values["model"]:
        benchmark = benchmark_terms(round_.name, asked.model)
        values["scenario"] = [str(scenario) for scenario in benchmark.scenarios]
        values["compliance"] = list(benchmark.compliance)
    return values


def run_job(
    asked: CampaignSettings,
    recipes: Recipes,
    command: str,
    typed: Mapping[str, str] = NOTHING,
    changes: Amendments = UNCHANGED,
) -> JobExports:
    """Execute the job and return what the recipe exports; `typed` is what the user set by --env. Raises CmError."""
    from cm4vllm.campaign.job import run  # half of all modules, the report's among them: no plan needs them

    if asked.machine:
        raise UsageError(
            f"--machine={asked.machine} is for a plan",
            cause="a job runs on this machine",
            remedy="add --plan, or leave --machine out",
        )
    job = checked_job(asked, changes)
    for finding in unready(load=load_sample()):
        warn(f"{finding.field}: {finding.what}; {finding.remedy}")
    run(job, recipes, command, typed)
    return _results(job)


def command_line(request: Mapping[str, Any]) -> str:
    """Return the command that the entry was started by, for the records."""
    return stored_command(["cm", "run", "script", *(request.get("cmd") or [f"--tags={request.get('tags', '')}"])])


def typed_env(request: Mapping[str, Any]) -> dict[str, str]:
    """Return what the user of the entry set by --env and --const, which all steps get."""
    return {key: str(value) for kind in ("env", "const") for key, value in (request.get(kind) or {}).items()}


def _results(job: Job) -> JobExports:
    return JobExports(results_dir=str(job.out), summary=str(job.out / "summary.html"))


def planned_steps(out: Path, steps: tuple[Step, ...], *, kept: bool = True) -> list[dict[str, Any]]:
    """Return a schedule in the form of the engine's hook `plan`, with how long its steps took in earlier commands.

    Without `kept` no earlier command counts.
    """
    with contextlib.suppress(OSError):  # of a ledger that cannot be read nothing is known
        steps = read_ledger(out).with_durations(steps) if kept else steps
    return [_as_plan(step, before) for step, before in zip(steps, (None, *steps), strict=False)]


def _as_plan(step: Step, before: Step | None) -> dict[str, Any]:
    """Return a step in the form of the engine's hook `plan`; the step `before` already shows the values of both."""
    known = given_values(before.inputs) if before else {}
    measured = {key: value for key, value in given_values(step.inputs).items() if isinstance(value, MeasuredTarget)}
    new = [value for key, value in measured.items() if known.get(key) != value]
    source = env_keys(RunInputs)["target_qps_source"]
    unknown = {name: f"the step {value.step}" for key, value in measured.items() for name in (key, source)}
    notes = [
        f"gives {step.gives}; {f'takes {step.duration.words}' if step.duration else 'its duration is not known'}",
        *([f"expected: {step.expected.words}"] if step.expected else []),
        *(f"{value.subject}: {value.words}" for value in new),
        *(f"then checks that {check}" for check in step.checks),
        *([f"the job goes on if its source cannot be reached: {step.without}"] if step.without else []),
        *step.notes,
    ]
    data = msgspec.to_builtins(step)
    del data["amended"]
    return {
        "name": step.name,
        "tags": step.tags,
        "names": list(step.names),
        "unknown": unknown,
        "notes": notes,
        "env": step.env(),
        "only_if": step.condition.words if step.condition else "",
        "brings": [
            {"how": bring.how, "what": bring.what, "disk_bytes": bring.disk_bytes, "measured": bring.source}
            for bring in step.brings
        ],
        "data": {**data, "inputs": {**step.env(), **msgspec.to_builtins(measured)}},
    }
