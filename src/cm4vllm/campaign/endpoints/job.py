"""A job of MLPerf Endpoints: planned and executed as a job of Inference is, by its schedule and with a ledger."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from cm4vllm import __version__
from cm4vllm.campaign.endpoints.settings import EndpointsJob, EndpointsSettings
from cm4vllm.campaign.entry import planned_steps
from cm4vllm.campaign.execution import Execution, run_schedule
from cm4vllm.campaign.planning.step_environment import NOTHING, JobExports, JobInputs, ServerStep, StepEnvironment
from cm4vllm.campaign.planning.steps import Duration, Product, Recipes, Step, point_name
from cm4vllm.common import input_types
from cm4vllm.common.clock import present
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import json_text, typed_path
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.host_addresses import host_of, is_loopback
from cm4vllm.common.programs.own_program import commit_of_this_repository
from cm4vllm.common.progress import say, say_text
from cm4vllm.common.records import read_optional, read_record, write_record
from cm4vllm.endpoints.authoring import BundleInputs
from cm4vllm.endpoints.bundle import CheckerInstallation
from cm4vllm.endpoints.client_source import wanted_commit
from cm4vllm.endpoints.curve_plan import placed_points
from cm4vllm.endpoints.curve_search import CurveInputs
from cm4vllm.endpoints.disclosure import missing_of_node, read_submitter_file
from cm4vllm.endpoints.inspection import EndpointsCheckSettings
from cm4vllm.endpoints.plan_words import (
    foreseen_table,
    kept_runs,
    moved_ends,
    one_more_point,
    plan_lines,
    regions_line,
    remeasured_lines,
)
from cm4vllm.endpoints.point import PointInputs
from cm4vllm.endpoints.records import CURVE_FILE, CurveRecord, PointRecord
from cm4vllm.endpoints.registration import confirmed, register_points, require_terminal
from cm4vllm.records.campaign import COMMAND_FILE, CommandRecord
from cm4vllm.records.checker import VERDICT_FILE, CurveVerdict
from cm4vllm.report.curve_page import curve_table, write_curve_page
from cm4vllm.results.endpoints.curves import POINT_FILE, Curve, read_curves
from cm4vllm.results.endpoints.endpoints_harness import part
from cm4vllm.rules import RULES_FILE, RulesUsed, plain_rules
from cm4vllm.serving.launch_settings import require_access, require_installable
from cm4vllm.serving.probing.server_probe import require_length
from cm4vllm.serving.probing.server_requests import base_urls
from cm4vllm.submission.capsule.capsules_at_path import capsule_of_results
from cm4vllm.submission.capsule.rerun_file import CAPSULE_FILE, write_capsule
from cm4vllm.submission.published_program import program_digest
from cm4vllm.submission.system_records import SystemSettings


class CommonInputs(JobInputs, frozen=True, kw_only=True):
    """The inputs of every step of the job: the names that the settings stand for."""

    benchmark: input_types.EndpointsModel
    cohort: input_types.EndpointsCohort
    pass_samples: input_types.PassSamples


def environment_of(job: EndpointsJob, typed: Mapping[str, str] = NOTHING) -> StepEnvironment:
    """Return the environment of the job's steps before the first; `typed` is what the user set by --env."""
    common = CommonInputs(
        benchmark=job.benchmark.name,
        cohort=job.target.cohort,
        pass_samples=job.pass_samples,
        model=job.benchmark.benchmark,
        execution_mode=str(job.execution_mode),
        api_server=job.settings.api_server,
        results_dir=str(job.out),
    )
    return StepEnvironment(typed, job.settings, common=common)


def schedule(job: EndpointsJob) -> tuple[Step, ...]:
    """Return the steps of a job in their order."""
    return (*_programs(job), *_server_steps(job), *_curve(job), *_bundle(job))


def _programs(job: EndpointsJob) -> Iterator[Step]:
    yield Step(
        name="reference client", tags="get,mlperf,endpoints,_client", gives="the reference client from a clean checkout"
    )
    yield Step(
        name="official checker",
        tags="get,mlperf,endpoints,_checker",
        gives="the official builder and checker of bundles",
    )


def _server_steps(job: EndpointsJob) -> Iterator[Step]:
    """Yield the steps up to a server that is ready and a machine that is described."""
    given = bool(job.settings.api_server)
    if given:
        yield _server(job)
    yield Step(name="model", tags=f"get,ml-model,{job.sources.model}", gives="the model's folder and its record")
    if job.is_stand_in:
        yield Step(name="dataset", tags="get,dataset,_tiny", gives="the dataset's file and its record")
    if not given:
        yield _server(job)
    yield Step(
        name="system",
        tags="get,sut,description",
        inputs=SystemSettings(folder=str(job.out / "system")),
        gives="system/system.json, system/machine.json",
    )


def _server(job: EndpointsJob, point: int = 0, options: str = "") -> Step:
    """Return the step that starts the server: of all points, or from a point on with further options of vLLM."""
    given = bool(job.settings.api_server)
    folder = f"server/point-{point}" if point else "server"
    return Step(
        name=f"server from {point_name(point)} on" if point else "server",
        tags="run,vllm-server",
        gives=f"{folder}/server.json",
        product=None if given else Product.SERVER,
        inputs=ServerStep(
            folder=str(job.out / folder),
            background=True,
            model_name=None if given else "",
            extra=f"{job.settings.extra_args} {options}".strip() if point else None,
        ),
        notes=(f"another server: {options or 'without the options of the point before'}",) if point else (),
    )


def _curve(job: EndpointsJob) -> Iterator[Step]:
    """Yield the probes that place the points, and a run for each point."""
    settings = job.settings
    yield Step(
        name="curve",
        tags="find,mlperf,endpoints,curve",
        gives="curve/curve.json",
        product=Product.CURVE,
        inputs=CurveInputs(
            output_dir=str(job.out / "curve"),
            c_min=job.c_min,
            c_max=job.c_max,
            points=settings.points,
            count=settings.count,
            offline=settings.offline,
            rehearsal=job.rehearsal,
        ),
        notes=("short runs measure the server's rates, from which the points, their samples and minutes follow",),
    )
    seconds = min(rule.seconds for rule in job.rules.durations)
    least = Duration(seconds=seconds, source="the rules' shortest steady state", at_least=True)
    options = ""
    for number in range(1, job.points + 1):
        concurrency = job.given[number - 1] if number <= len(job.given) else 0  # a dedicated Offline run has none
        if (own := job.options.get(concurrency, "")) != options:
            options = own
            yield _server(job, number, options)
        yield Step(
            name=point_name(number),
            tags="run,mlperf,endpoints,point",
            gives=f"points/point-{number}",
            product=Product.POINT,
            duration=None if job.rehearsal else least,
            inputs=PointInputs(
                number=number,
                output_dir=str(job.out / "points" / f"point-{number}"),
                curve="<<<CM_MLPERF_ENDPOINTS_CURVE>>>",
            ),
        )


def _bundle(job: EndpointsJob) -> Iterator[Step]:
    yield Step(
        name="bundle",
        tags="generate,mlperf,endpoints,bundle",
        gives="bundle/",
        inputs=BundleInputs(points=str(job.out / "points"), output_dir=str(job.out / "bundle")),
    )
    yield Step(
        name="checks",
        tags="check,mlperf,endpoints",
        gives="what our checks and the official checker find",
        inputs=EndpointsCheckSettings(
            folder=str(job.out / "bundle"),
            # The stand-in has a name of its own, which no checker knows.
            allowed="CURVE-MODEL,model-name-valid" if job.is_stand_in else "",
            verdict_file=str(job.out / VERDICT_FILE),
        ),
        report_first=True,
    )


def plan_job(asked: EndpointsSettings) -> dict[str, Any]:
    """Return the schedule in the form of the engine's hook `plan`. Raises CmError for what the run would refuse."""
    job = _checked_job(asked)
    for note in (*job.notes, *_curve_notes(job), *_remeasured(job)):
        say(f"note: {note}")
    return {"env": environment_of(job).values | _results(job).env(), "steps": planned_steps(job.out, schedule(job))}


def run_job(
    asked: EndpointsSettings, recipes: Recipes, command: str, typed: Mapping[str, str] = NOTHING, *, quiet: bool = False
) -> JobExports:
    """Execute the job and return what the recipe exports. Raises CmError.

    `command` is the line that started it, `typed` is what the user set by --env. With `quiet` nothing is asked.
    """
    require_terminal(asked.register, quiet=quiet)
    job = _checked_job(asked)
    environment = environment_of(job, typed)
    run_schedule(
        job,
        schedule(job),
        environment,
        recipes,
        finish=partial(_report, job),
        record=partial(_record_command, job, command),
    )
    if asked.register:  # no check has an error then
        checker = read_record(Path(environment.read(BundleInputs).checker), CheckerInstallation)
        consent = _without_a_question if quiet else confirmed
        register_points(checker, job.out / "points", asked.register, consent)
    return _results(job)


def _without_a_question(question: str) -> bool:
    """Print what is sent, and return True."""
    say_text(question)
    return True


def _record_command(job: EndpointsJob, command: str, execution: Execution) -> bool:
    """Write which command made the results, with which program, and by which rules."""
    write_noted(job.out / RULES_FILE, json_text(plain_rules(job.rules)))
    write_record(
        job.out / COMMAND_FILE,
        CommandRecord(
            command=command,
            cm_version=metadata.version("cmind"),
            cm4vllm_version=__version__,
            execution_mode=job.execution_mode,
            started_at=execution.started,
            commit=commit_of_this_repository(),
            program_sha256=program_digest(),
        ),
    )
    return True


def _checked_job(asked: EndpointsSettings) -> EndpointsJob:
    """Return the job that the settings ask for, checked. Raises CmError."""
    job = EndpointsJob.of(asked)
    _require_own_address(job.settings.api_server)
    servers = job.settings.servers
    require_installable(servers)
    if job.settings.api_server:
        require_length(
            job.settings.api_server,
            job.settings.vllm_model_name,
            servers.max_model_len or 0,
            ca_file=servers.api_server_ca,
            access=require_access(servers),
        )
    path = job.settings.submitter_file
    stated = read_submitter_file(typed_path(path).absolute() if path else None)
    unstated = missing_of_node(stated.node, ("driver", "filesystem"))
    if job.settings.api_server and unstated:
        raise UsageError(
            f"--submitter_file does not state {' and '.join(unstated)} of a node",
            cause="the bundle needs them, and they cannot be detected of a server at --api_server",
            remedy="state them as keys of `node` in the file",
        )
    return job


def _require_own_address(addresses: str) -> None:
    """Raise UsageError for a server that the client's configuration, which is submitted, may not name."""
    for address in base_urls(addresses) if addresses else ():
        if not is_loopback(host_of(address)):
            raise UsageError(
                f"{address} is no address of this machine itself",
                cause="the reference client writes it into config.yaml, which is submitted as the client wrote it",
                remedy="make a port of this machine that leads to the server, for example with `socat "
                "TCP-LISTEN:8000,bind=127.0.0.1,fork,reuseaddr TCP:SERVER:8000`, and give "
                "--api_server=http://127.0.0.1:8000",
            )


def _curve_notes(job: EndpointsJob) -> list[str]:
    """Return what the plan says of the curve: as an earlier command found it, else as far as it is given."""
    earlier = job.out / "curve" / CURVE_FILE
    if earlier.is_file():
        return list(plan_lines(job.rules, read_record(earlier, CurveRecord)))
    if not job.c_max:
        return ["C_max is found by a search on the server; the points are placed then"]
    rules = job.rules
    curve = rules.regions(c_min=job.c_min, c_max=job.c_max)
    points = placed_points(curve, job.given, job.points - (job.settings.offline == "dedicated"))
    return [
        regions_line(curve),
        *(
            f"point {n}: concurrency {concurrency:,} ({', '.join(r.name for r in curve.of(concurrency))})"
            for n, concurrency in enumerate(points, 1)
        ),
        *([] if job.given else ["the points between the two ends may move after the probes, by the server's rates"]),
        "samples and minutes follow from the probes: "
        f"at least {rules.window.passes + rules.window.warm_up.least} passes over the dataset each"
        + ("" if job.rehearsal else f", and {rules.least_seconds(1):,.0f} or {rules.least_seconds(job.c_max):,.0f} s"),
        *one_more_point(rules, points),
        *moved_ends(rules, points),
    ]


def _remeasured(job: EndpointsJob) -> list[str]:
    """Return what the plan says of kept runs of another client, seeds or rules; nothing where no run is kept."""
    if not kept_runs(job.out):
        return []
    commit = wanted_commit(job.settings.endpoints_commit, job.settings.endpoints_src)
    return list(remeasured_lines(job.out, commit, job.rules, job.target.seeds))


def _report(job: EndpointsJob, execution: Execution) -> None:
    """Write the page and print the table; then raise what the checks found."""
    curves, _ = read_curves(job.out / "points", job.rules)
    page = write_curve_page(curves, job.out / "curve.html", notices=job.notices, facts=_facts(job, curves))
    if curves:
        write_capsule(job.out / CAPSULE_FILE, capsule_of_results(job.out))
    print(curve_table(curves), flush=True)
    print(_minutes_table(job), flush=True)
    say(f"report: {page}")
    if execution.failure is not None:
        raise execution.failure
    say(f"next: {_next_step(job)}")


def _facts(job: EndpointsJob, curves: Sequence[Curve]) -> list[tuple[str, str]]:
    """Return what the page says of the job: verdicts, date, machine, client, rules, cohort and command."""
    verdict = read_optional(job.out / VERDICT_FILE, CurveVerdict)
    command = read_optional(job.out / COMMAND_FILE, CommandRecord)
    points = [point for curve in curves for point in curve.points]
    commits = sorted({str(point.record.get("client_commit") or "not known") for point in points})
    systems = sorted({str(point.system.get("system_name") or "not stated") for point in points})
    days = sorted({str(point.record.get("started_at") or "")[:10] for point in points} - {""})
    used = RulesUsed.of(job.rules).sha256
    others = sorted({str(part(point.record, "rules").get("sha256") or "rules not known") for point in points} - {used})
    return [
        ("official checker", f"{verdict.official_version}: {verdict.official_words}" if verdict else "not run"),
        ("checks of cm4vllm", verdict.own_words if verdict else "not made"),
        ("measured", " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "not known"),
        ("system", ", ".join(systems)),
        ("reference client", f"mlcommons/endpoints at {', '.join(commits)}"),
        ("rules", f"{job.rules.title}, SHA-256 {used}" + f"; points by {', '.join(others)}" * bool(others)),
        ("cohort", f"{job.target.cohort}, seed set {job.target.seeds.name}" + "; over" * bool(job.target.over)),
        ("command", command.command if command else "not known"),
    ]


def _next_step(job: EndpointsJob) -> str:
    """Return what to do after a job without errors."""
    if job.is_stand_in:
        return (
            "name a model (--vllm_model_name=ORGANISATION/MODEL) or a server (--api_server=URL); --plan shows the job"
        )
    if job.rehearsal:
        return "measure the curve at full length with --execution_mode=valid; --plan shows its minutes"
    if over := job.rules.target(job.target.cohort, present().date()).over:
        return f"the cohort is over now, newer rules are needed ({over}): {job.out / 'bundle'}"
    return f"the bundle can be submitted for cohort {job.target.cohort}: {job.out / 'bundle'}"


def _minutes_table(job: EndpointsJob) -> str:
    """Return the table of the minutes that were foreseen and measured of each point."""
    files = {number: job.out / "points" / f"point-{number}" / POINT_FILE for number in range(1, job.points + 1)}
    measured = {number: read_record(file, PointRecord) for number, file in files.items() if file.is_file()}
    return foreseen_table(read_record(job.out / "curve" / CURVE_FILE, CurveRecord), measured) + "\n"


def _results(job: EndpointsJob) -> JobExports:
    return JobExports(results_dir=str(job.out), summary=str(job.out / "curve.html"))
