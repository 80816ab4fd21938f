"""The steps of a schedule up to a server that is ready and a machine that is described."""

from collections.abc import Iterator

from cm4vllm import SIMULATED_NOTICE
from cm4vllm.assets.quantization import Calibrated
from cm4vllm.campaign.asset_sources import needs_calibration
from cm4vllm.campaign.planning.step_environment import PreflightInputs, ServerStep, SettingsSearchStep
from cm4vllm.campaign.planning.steps import Check, Condition, Duration, Need, Product, Step
from cm4vllm.campaign.rehearsal.profile import read_profile
from cm4vllm.campaign.search.search_space import Space
from cm4vllm.campaign.settings import Job
from cm4vllm.common.errors import UsageError
from cm4vllm.hardware.named_machine import described_machine
from cm4vllm.records.searches.settings_search import SETTINGS_FILE, STEP
from cm4vllm.rules import Media, Mode, audit
from cm4vllm.submission.system_records import SystemSettings


def steps_before(job: Job) -> Iterator[Step]:
    """Yield the steps before hours are spent: a result that cannot be checked is not begun."""
    if job.settings.run_checker and not job.no_tree:
        yield Step(
            name="checker source",
            fetches=True,
            tags="get,mlperf,inference,src",
            gives="the official checkers' files",
            without="the official checker will not run on this rehearsal" if job.rehearsal else "",
        )
    if job.settings.power != "no" and Mode.PERFORMANCE in job.modes:
        yield Step(
            name="power programs",
            fetches=True,
            tags=f"get,mlperf,power,src,{job.round.variation}",
            gives="the official power client and server",
        )
        simulated = ",_simulated" if job.settings.power == "simulated" else ""
        again = any(map(job.reruns, ("power preflight", *(f"{scenario} performance" for scenario in job.scenarios))))
        places = tuple(f"runs/*/*/{scenario}/performance" for scenario in job.scenarios)
        yield Step(
            name="power preflight",
            tags=f"run,mlperf,power,client,_preflight{simulated},{job.round.variation}",
            gives="a session without a measurement, for its clocks, ports, channels and private words",
            duration=Duration(
                seconds=20 if simulated else 70, source="two runs of seconds, and the pauses of a session"
            ),
            condition=None if again else Condition(need=Need.NO_SESSION, of=places),
            inputs=PreflightInputs(before_tree=not job.no_tree),
        )
    for name in job.graders:
        yield Step(
            name=f"grader {name}",
            fetches=True,
            tags=f"get,mlperf,grader,_{name}",
            gives="an official script that judges answers, and its environment",
            without="what it judges will not be scored in this rehearsal" if job.rehearsal else "",
        )


def asset_steps(job: Job) -> Iterator[Step]:
    """Yield the steps up to a server that is ready and a machine that is described."""
    sources, given = job.sources, bool(job.settings.api_server)
    if given:  # before all else: a wrong address should not cost a download
        yield _server(job)
    yield Step(
        name="LoadGen",
        fetches=True,
        tags=f"get,mlperf,inference,loadgen,{job.round.variation}",
        gives=f"the LoadGen wheel of {job.round.name}",
    )
    yield Step(
        name="model",
        fetches=True,
        tags=f"get,ml-model,{sources.model}",
        gives="the model's folder and its record",
        notes=sources.model_notes,
        checks=(Check.VOCABULARY,) if given else (),
    )
    if job.proves_model:
        yield _identity("model identity")
    if job.quantisation:
        yield from _quantisation_steps(job)
    if job.benchmark.media is Media.IMAGE:
        yield Step(
            name="vision packages",
            fetches=True,
            tags="get,vision-packages" if given else "get,vision-packages,_server",
            gives="readers of pictures: torchvision for vLLM's CPU build, Pillow for a dataset of files",
        )
    yield from _datasets(job)
    yield from _language_data(job)
    if not given:
        if job.space is not None:
            yield _settings_search(job, job.space)
        yield _server(job)
    if not job.settings.rehearse:
        yield Step(name="processors", tags="detect,cpu", gives="facts of this machine's processors")
    yield Step(
        name="system",
        tags="get,sut,description",
        inputs=SystemSettings(folder=str(job.out / "system")),
        gives="system/system.json, system/machine.json",
    )


def _language_data(job: Job) -> Iterator[Step]:
    """Yield what splits texts and reads speech, for the scores."""
    if job.needs_sentence_model:
        yield Step(
            name="sentence model", tags="get,nltk-data", gives="nltk's sentence model, for the scores", fetches=True
        )
    if job.benchmark.media is Media.AUDIO and not job.settings.rehearse:
        yield Step(
            name="speech packages",
            fetches=True,
            tags="get,speech-packages"
            if job.settings.served or job.settings.launch.container
            else "get,speech-packages,_server",
            gives="readers of audio, and whisper's normaliser, for the scores",
        )


def _quantisation_steps(job: Job) -> Iterator[Step]:
    """Yield the steps that quantise the model."""
    calibrated = needs_calibration(job.quantisation)
    if calibrated:
        yield Step(
            name="calibration set",
            fetches=True,
            tags=f"get,dataset,_calibration,{job.sources.calibration}",
            gives="the calibration set's file and its record",
            brings=job.sources.brings("calibration"),
        )
    yield Step(
        name="quantisation",
        tags=f"quantize,ml-model,{job.quantisation}",
        inputs=Calibrated(calibrated=calibrated),
        gives="the quantised model's folder and its record",
    )
    if job.proves_model:
        yield _identity("quantised model identity")


def _datasets(job: Job) -> Iterator[Step]:
    """Yield the steps that provide the dataset of each mode: mostly it is one."""
    sources, checks = job.sources, (Check.PROMPTS if job.benchmark.media is None else Check.MEDIA,)
    if Mode.ACCURACY in job.modes or not sources.performance:
        yield Step(
            name="dataset",
            fetches=True,
            tags=f"get,dataset,{sources.dataset}",
            gives="the dataset's file and its record",
            brings=sources.brings("dataset"),
            checks=checks,
        )
    if sources.performance:
        yield Step(
            name="performance dataset",
            fetches=True,
            tags=f"get,dataset,_performance,{sources.performance}",
            gives="the file and the record of performance runs' dataset",
            brings=sources.brings("performance"),
            checks=checks,
        )
    for test in job.tests:
        if audit(test, job.benchmark.name).own_dataset:
            yield Step(
                name=f"{test} dataset",
                fetches=True,
                tags=f"get,dataset,_compliance.{test},{sources.compliance}",
                gives="the file and the record of the test's dataset",
                brings=sources.brings("compliance"),
                checks=checks,
            )


def _identity(name: str) -> Step:
    return Step(name=name, tags="verify,ml-model", gives="the model's record under the name of the benchmark")


def _server(job: Job) -> Step:
    """Return the step that checks the given server, or starts one for the model that the steps before provide."""
    given = bool(job.settings.api_server)
    return Step(
        name="server",
        tags="run,simulated-vllm-server" if job.settings.rehearse else "run,vllm-server",
        gives="server/server.json",
        notes=(_simulated_note(job.settings.rehearse),) if job.settings.rehearse else (),
        product=None if given else Product.SERVER,
        checks=(Check.NAMED_MODEL,) if given and not job.sources.named else (),
        inputs=ServerStep(folder=str(job.out / "server"), background=True, model_name=None if given else ""),
    )


def _simulated_note(name: str) -> str:
    words = f"{SIMULATED_NOTICE}: with the times of the profile {name}"
    try:
        return f"{words}: {described_machine(read_profile(name).system).words}"
    except UsageError:  # a profile need not say which machine it is
        return words


def _settings_search(job: Job, space: Space) -> Step:
    """Return the step that searches for the settings of the server that the step after it starts."""
    folder = "search/server-settings"
    return Step(
        name=STEP,
        tags="find,mlperf,inference,server-settings",
        gives=f"{folder}/{SETTINGS_FILE}",
        product=Product.SETTINGS,
        duration=Duration(seconds=60 * job.search_minutes, source="at most (--search_minutes)"),
        inputs=SettingsSearchStep(
            output_dir=str(job.out / folder),
            search=job.settings.search,
            minutes=job.search_minutes,
            scenarios=",".join(job.scenarios),
            model_name="",
        ),
        notes=(
            f"{space.size} candidates, and the server as it is where it is none of them: each takes a start of the "
            "server; the best third is measured three times as long, and so on",
        ),
    )
