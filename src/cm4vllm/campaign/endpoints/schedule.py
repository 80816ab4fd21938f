"""The schedule of a job of MLPerf Endpoints: its steps in their order, as data."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from cm4vllm.campaign.endpoints.settings import EndpointsJob
from cm4vllm.campaign.planning.step_environment import NOTHING, JobInputs, StepEnvironment
from cm4vllm.campaign.planning.step_inputs import ServerStep, SystemStep
from cm4vllm.campaign.planning.steps import Duration, Product, Step, StepInputs, point_name
from cm4vllm.common import input_types
from cm4vllm.common.settings import Settings
from cm4vllm.endpoints.authoring import BundleInputs
from cm4vllm.endpoints.curve_search import CurveInputs
from cm4vllm.endpoints.inspection import EndpointsCheckSettings
from cm4vllm.endpoints.point import PointInputs
from cm4vllm.rules import endpoints_rules


class CommonInputs(JobInputs, frozen=True, kw_only=True):
    """The inputs of every step of the job: the names that the settings stand for."""

    benchmark: input_types.EndpointsModel
    cohort: input_types.EndpointsCohort
    pass_samples: input_types.PassSamples


def environment_of(job: EndpointsJob, typed: Mapping[str, str] = NOTHING) -> StepEnvironment:
    """Return the environment of the job's steps before the first; `typed` is what the user set by --env."""
    common = CommonInputs(
        benchmark=job.benchmark.name,
        cohort=job.settings.cohort,
        pass_samples=job.pass_samples,
        model=job.benchmark.benchmark,
        execution_mode=str(job.execution_mode),
        api_server=job.settings.api_server,
        results_dir=str(job.out),
    )
    return StepEnvironment(typed, job.settings, common=common)


class CurveStep(StepInputs, frozen=True, kw_only=True):
    """The probes that place the points of a curve."""

    READ_BY: ClassVar[tuple[type[Settings], ...]] = (CurveInputs,)

    output_dir: str
    c_min: int
    c_max: int
    points: str
    count: int
    offline: str
    rehearsal: bool


class PointStep(StepInputs, frozen=True, kw_only=True):
    """The run of a point of the curve."""

    READ_BY: ClassVar[tuple[type[Settings], ...]] = (PointInputs,)

    number: int
    output_dir: str
    curve: str = "<<<CM_MLPERF_ENDPOINTS_CURVE>>>"


class BundleStep(StepInputs, frozen=True, kw_only=True):
    """The bundle of the points."""

    READ_BY: ClassVar[tuple[type[Settings], ...]] = (BundleInputs,)

    points: str
    output_dir: str


class ChecksStep(StepInputs, frozen=True, kw_only=True):
    """The checks of the bundle, and the errors that they may find."""

    READ_BY: ClassVar[tuple[type[Settings], ...]] = (EndpointsCheckSettings,)

    folder: str
    allowed: str | None = None


def schedule(job: EndpointsJob) -> tuple[Step, ...]:
    """Return the steps of a job in their order."""
    return (*_programs(job), *_served(job), *_curve(job), *_bundle(job))


def _programs(job: EndpointsJob) -> Iterator[Step]:
    yield Step(
        name="reference client", tags="get,mlperf,endpoints,_client", gives="the reference client from a clean checkout"
    )
    yield Step(
        name="official checker",
        tags="get,mlperf,endpoints,_checker",
        gives="the official builder and checker of bundles",
    )


def _served(job: EndpointsJob) -> Iterator[Step]:
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
        inputs=SystemStep(folder=str(job.out / "system")),
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
        inputs=CurveStep(
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
    seconds = min(rule.seconds for rule in endpoints_rules().durations)
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
            inputs=PointStep(number=number, output_dir=str(job.out / "points" / f"point-{number}")),
        )


def _bundle(job: EndpointsJob) -> Iterator[Step]:
    yield Step(
        name="bundle",
        tags="generate,mlperf,endpoints,bundle",
        gives="bundle/",
        inputs=BundleStep(points=str(job.out / "points"), output_dir=str(job.out / "bundle")),
    )
    yield Step(
        name="checks",
        tags="check,mlperf,endpoints",
        gives="what our checks and the official checker find",
        inputs=ChecksStep(
            folder=str(job.out / "bundle"),
            # The stand-in has a name of its own, which no checker knows.
            allowed="CURVE-MODEL,model-name-valid" if job.is_stand_in else None,
        ),
        report_first=True,
    )
