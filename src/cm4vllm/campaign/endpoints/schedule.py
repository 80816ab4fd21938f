"""The schedule of a job of MLPerf Endpoints: its steps in their order, as data."""

from collections.abc import Iterator

from cm4vllm.campaign.endpoints.settings import EndpointsJob
from cm4vllm.campaign.planning.steps import Duration, Product, Step, point_name
from cm4vllm.rules import endpoints_rules


def common_inputs(job: EndpointsJob) -> dict[str, str]:
    """Return the environment keys that every step of the job gets."""
    return {
        "CM_MLPERF_ENDPOINTS_MODEL": job.benchmark.name,
        "CM_MLPERF_ENDPOINTS_COHORT": job.settings.cohort,
        "CM_MLPERF_ENDPOINTS_PASS_SAMPLES": str(job.pass_samples),
        "CM_MLPERF_MODEL": job.benchmark.benchmark,
        "CM_MLPERF_RUN_STYLE": str(job.execution_mode),
        "CM_MLPERF_INFERENCE_API_SERVER": job.settings.api_server,
        "CM_MLPERF_RESULTS_DIR": str(job.out),
    }


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
        inputs={"CM_SUT_DIR": str(job.out / "system")},
        gives="system/system.json, system/machine.json",
    )


def _server(job: EndpointsJob, point: int = 0, options: str = "") -> Step:
    """Return the step that starts the server: of all points, or from a point on with further options of vLLM."""
    given = bool(job.settings.api_server)
    folder = f"server/point-{point}" if point else "server"
    more = {"CM_VLLM_SERVER_EXTRA_ARGS": f"{job.settings.extra_args} {options}".strip()} if point else {}
    return Step(
        name=f"server from {point_name(point)} on" if point else "server",
        tags="run,vllm-server",
        gives=f"{folder}/server.json",
        product=None if given else Product.SERVER,
        inputs={
            **({} if given else {"CM_VLLM_SERVER_MODEL_NAME": ""}),
            **more,
            "CM_VLLM_SERVER_BACKGROUND": "yes",
            "CM_VLLM_SERVER_DIR": str(job.out / folder),
        },
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
        inputs={
            "CM_MLPERF_ENDPOINTS_CURVE_DIR": str(job.out / "curve"),
            "CM_MLPERF_ENDPOINTS_C_MIN": str(job.c_min),
            "CM_MLPERF_ENDPOINTS_C_MAX": str(job.c_max),
            "CM_MLPERF_ENDPOINTS_POINTS_GIVEN": settings.points,
            "CM_MLPERF_ENDPOINTS_POINT_COUNT": str(settings.count),
            "CM_MLPERF_ENDPOINTS_OFFLINE_RESULT": settings.offline,
            "CM_MLPERF_ENDPOINTS_REHEARSAL": "yes" if job.rehearsal else "no",
        },
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
            inputs={
                "CM_MLPERF_ENDPOINTS_CURVE": "<<<CM_MLPERF_ENDPOINTS_CURVE>>>",
                "CM_MLPERF_ENDPOINTS_POINT_NUMBER": str(number),
                "CM_MLPERF_OUTPUT_DIR": str(job.out / "points" / f"point-{number}"),
            },
        )


def _bundle(job: EndpointsJob) -> Iterator[Step]:
    yield Step(
        name="bundle",
        tags="generate,mlperf,endpoints,bundle",
        gives="bundle/",
        inputs={
            "CM_MLPERF_ENDPOINTS_POINTS": str(job.out / "points"),
            "CM_MLPERF_ENDPOINTS_BUNDLE_DIR": str(job.out / "bundle"),
        },
    )
    yield Step(
        name="checks",
        tags="check,mlperf,endpoints",
        gives="what our checks and the official checker find",
        inputs={
            "CM_MLPERF_ENDPOINTS_CHECKED": str(job.out / "bundle"),
            # The stand-in has a name of its own, which no checker knows.
            **({"CM_MLPERF_ENDPOINTS_ALLOWED_ERRORS": "CURVE-MODEL,model-name-valid"} if job.is_stand_in else {}),
        },
        report_first=True,
    )
