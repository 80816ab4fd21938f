"""Checks of the model, the datasets and the runs of a job."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from cm4vllm.assets.model_identity import differences, is_from
from cm4vllm.assets.samples.audio_dataset import digest_of_clips
from cm4vllm.campaign.asset_sources import needs_calibration
from cm4vllm.campaign.job_checks.given_datasets import other_prompts
from cm4vllm.campaign.job_checks.of_division.facts import NOT_SHOWN, SOURCE, JobFacts
from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.files import digest_of, typed_path
from cm4vllm.rules import Mode, audit, catalogue, over_network, speculation
from cm4vllm.serving.options.fixed_options import speculative_options


@check("MODEL", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
def model(facts: JobFacts) -> Iterator[Fault]:
    """The model is the benchmark's own: as MLCommons publishes it, or quantised from that."""
    job, (source, _, location) = facts.job, facts.job.sources.model.removeprefix("_").partition(".")
    own = catalogue().benchmark(job.benchmark.name).model
    remedy = f"name the benchmark's model: _mlcommons.{own} among the tags; --quantize=SCHEME quantises it"
    if job.settings.api_server:
        yield Fault(
            "the server at --api_server was not started by cm4vllm: the files that it serves cannot be compared"
            + (NOT_SHOWN if over_network(job.division) else ""),
            remedy="" if over_network(job.division) else f"leave --api_server out; {remedy}",
        )
    elif source == catalogue().benchmark(job.benchmark.name).stand_in:
        yield Fault("the model is the stand-in, a tiny model that comes with cm4vllm", remedy=remedy)
    elif job.sources.dummy:
        yield Fault("the model has random weights (_dummy)", remedy=remedy)
    elif source == "path":
        differing = list(differences(typed_path(location), job.benchmark.name, quick=True))
        if differing:
            yield Fault(
                f"the model in {location} is not {own}: {differing[0]}"
                + (f", and {len(differing) - 1} more" if len(differing) > 1 else ""),
                remedy=remedy,
            )
    elif not is_from(job.benchmark.name, location):
        yield Fault(f"the model is {location}; the benchmark's is {own}", remedy=remedy)


@check("CALIBRATION", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
def calibration(facts: JobFacts) -> Iterator[Fault]:
    """A quantisation that is calibrated uses the benchmark's calibration set."""
    sources = facts.job.sources
    name = catalogue().benchmark(facts.job.benchmark.name).calibration
    if needs_calibration(facts.job.quantisation) and name:
        yield from _published_file(sources.calibration, name, "calibration set", "--calibration_path")


@check("DATASET", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
def dataset(facts: JobFacts) -> Iterator[Fault]:
    """The datasets are those of the benchmark, as they are published."""
    assets, sources = catalogue().benchmark(facts.job.benchmark.name), facts.job.sources
    yield from _published_file(sources.dataset, assets.dataset, "dataset", "--dataset_path")
    yield from _prompts(facts)
    if sources.performance and assets.performance_dataset:
        yield from _published_file(
            sources.performance, assets.performance_dataset, "dataset of performance runs", "--performance_dataset_path"
        )
    if sources.compliance and any(audit(test, facts.job.benchmark.name).own_dataset for test in facts.job.tests):
        yield from _published_file(
            sources.compliance, assets.compliance_dataset, "dataset of a compliance test", "--compliance_dataset_path"
        )


def _prompts(facts: JobFacts) -> Iterator[Fault]:
    """Yield that prompts would be tokenised again, as far as dataset and model are files on this machine."""
    source, _, location = facts.job.sources.dataset.removeprefix("_").partition(".")
    if source != "path" or facts.job.benchmark.media is not None or typed_path(location).is_dir():
        return
    if why := other_prompts(typed_path(location), facts.job.sources.model):
        yield Fault(
            f"the prompts of {Path(location).name} were tokenised for another model, and are tokenised again: {why}",
            remedy="give the dataset as it is published, with the benchmark's model",
        )


def _published_file(variation: str, name: str, title: str, flag: str) -> Iterator[Fault]:
    source, _, location = variation.removeprefix("_").partition(".")
    known = catalogue().dataset(name)
    remedy = f"leave {flag} out, or give {known.file} as published, {known.digest}"
    if source == "tiny":
        yield Fault(
            f"the {title} is the stand-in's; the benchmark's is {name}",
            remedy="the benchmark's own is fetched with the benchmark's model, and without --dataset=tiny",
        )
    elif source == "path" and typed_path(location).is_dir():
        yield Fault(f"the {title} {Path(location).name} is a folder, of which no digest is published", remedy=remedy)
    elif source == "path":
        digest = digest_of(typed_path(location), known.digest.partition(":")[0])
        if digest != known.digest:
            yield Fault(
                f"the {title} {Path(location).name} has {digest}; {known.file} is published with {known.digest}",
                remedy=remedy,
            )
        elif known.clips and digest_of_clips(typed_path(location).parent, known.clips) != known.clips_digest:
            yield Fault(
                f"the clips beside {Path(location).name} are not those that are published with it",
                remedy=f"leave {flag} out, or give all files of {known.mlcommons}",
            )


@check("SPECULATION", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
def speculative_decoding(facts: JobFacts) -> Iterator[Fault]:
    """A server decodes speculatively only where the benchmark allows it."""
    job = facts.job
    if job.settings.api_server:
        yield Fault(
            "the server at --api_server was not started by cm4vllm: whether it decodes speculatively is not known"
            + (NOT_SHOWN if over_network(job.division) else ""),
            remedy=""
            if over_network(job.division)
            else "leave --api_server out: a server that is started has no speculative decoding",
        )
    try:
        given = speculative_options(shlex.split(facts.job.settings.servers.server.extra))
    except ValueError:  # what starts the server says why
        return
    listed = [
        str(scenario)
        for scenario in job.benchmark.scenarios
        if speculation(job.round.name, job.benchmark.name, scenario)
    ]
    where = (
        f"{job.benchmark.name} allows it in {', '.join(listed)} alone, which cm4vllm does not run with it"
        if listed
        else f"{job.benchmark.name} allows none"
    )
    for option in given:
        yield Fault(f"{option} in --extra_args: {where}", remedy=f"remove {option} from --extra_args")


@check("SCENARIOS", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
def scenarios(facts: JobFacts) -> Iterator[Fault]:
    """All scenarios that the benchmark needs in the category are measured."""
    job, needed = facts.job, facts.job.benchmark.required_on(facts.job.category)
    if needed is None:
        return
    missing = [str(scenario) for scenario in needed.all_of if scenario not in job.scenarios]
    if needed.one_of and not set(needed.one_of) & set(job.scenarios):
        missing.append(" or ".join(needed.one_of))
    if missing:
        asked = [str(scenario) for scenario in needed.all_of] + [str(scenario) for scenario in needed.one_of[:1]]
        yield Fault(
            f"{job.benchmark.name} needs {', '.join(missing)} beside {', '.join(job.scenarios)}",
            remedy=f"leave --scenario out, or name all: --scenario={','.join(asked)}",
        )


@check("VALIDATION", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
def validation(facts: JobFacts) -> Iterator[Fault]:
    """Each scenario has a performance run and an accuracy run."""
    missing = [str(mode) for mode in Mode if mode not in facts.job.modes]
    if missing:
        yield Fault(
            f"the job has no {' and no '.join(missing)} run", remedy="add _performance-and-accuracy to the tags"
        )


@check("DATACENTER", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
def datacenter_category(facts: JobFacts) -> Iterator[Fault]:
    """The job is of the category datacenter."""
    yield Fault(
        f"the job is of the category {facts.job.category}",
        remedy="give --category=datacenter where the benchmark has it",
    )
