"""Checks of a job: its model, its datasets, its runs, and the machines that it measures."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.assets.model_identity import differences, is_from
from cm4vllm.assets.samples.audio_dataset import digest_of_clips
from cm4vllm.campaign.asset_sources import needs_calibration
from cm4vllm.campaign.job_checks.preflight import other_prompts
from cm4vllm.campaign.settings import Job
from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.files import digest_of, typed_path
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.hardware.host import detect_network
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.hardware.system_file import read_system_file
from cm4vllm.records.described_system import NETWORK_KEYS
from cm4vllm.rules import Mode, audit, catalogue, over_network, speculation
from cm4vllm.serving.options.fixed_options import speculative_options
from cm4vllm.serving.probing.server_requests import base_urls
from cm4vllm.submission.system_records import runs_here

#: The rules are data, with their sources.
_SOURCE = "cm4vllm.rules, division_rules"
#: Why a rule that the machines of a system keep cannot be known from LoadGen's.
_NOT_SHOWN = "; vLLM's HTTP API, by which alone LoadGen's machine asks it, does not tell"


@dataclass(frozen=True)
class JobFacts:
    """The job, and the machine that it is checked on."""

    job: Job
    root: Path

    @property
    def stated(self) -> Mapping[str, str]:
        """The statements of the system file, empty without one."""
        path = self.job.settings.system_file
        return read_system_file(typed_path(path)).stated if path else {}

    @property
    def elsewhere(self) -> bool:
        """Return True if the model is served on other machines, about which this machine shows nothing."""
        servers = self.job.settings.api_server
        return bool(servers) and not any(runs_here(url) for url in base_urls(servers))


@check("MODEL", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
def model(facts: JobFacts) -> Iterator[Fault]:
    """The model is the benchmark's own: as MLCommons publishes it, or quantised from that."""
    job, (source, _, location) = facts.job, facts.job.sources.model.removeprefix("_").partition(".")
    own = catalogue().benchmark(job.benchmark.name).model
    remedy = f"name the benchmark's model: _mlcommons.{own} among the tags; --quantize=SCHEME quantises it"
    if job.settings.api_server:
        yield Fault(
            "the server at --api_server was not started by cm4vllm: the files that it serves cannot be compared"
            + (_NOT_SHOWN if over_network(job.division) else ""),
            remedy="" if over_network(job.division) else f"leave --api_server out; {remedy}",
        )
    elif source == catalogue().benchmark(job.benchmark.name).stand_in:
        yield Fault("the model is the stand-in, a tiny model that comes with cm4vllm", remedy=remedy)
    elif job.sources.dummy:
        yield Fault("the model has random weights (_dummy)", remedy=remedy)
    elif source == "path":
        if differing := list(differences(typed_path(location), job.benchmark.name, quick=True)):
            yield Fault(
                f"the model in {location} is not {own}: {differing[0]}"
                + (f", and {len(differing) - 1} more" if len(differing) > 1 else ""),
                remedy=remedy,
            )
    elif not is_from(job.benchmark.name, location):
        yield Fault(f"the model is {location or source}; the benchmark's is {own}", remedy=remedy)


@check("CALIBRATION", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
def calibration(facts: JobFacts) -> Iterator[Fault]:
    """A quantisation that is calibrated uses the benchmark's calibration set."""
    sources = facts.job.sources
    name = catalogue().benchmark(facts.job.benchmark.name).calibration
    if needs_calibration(facts.job.quantisation) and name:
        yield from _published_file(sources.calibration, name, "calibration set", "--calibration_path")


@check("DATASET", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
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


#: Datasets that come with cm4vllm, in words.
_MADE = {"tiny": "the stand-in's", "articles": "that of the articles"}


def _published_file(variation: str, name: str, title: str, flag: str) -> Iterator[Fault]:
    source, _, location = variation.removeprefix("_").partition(".")
    known = catalogue().dataset(name)
    remedy = f"leave {flag} out, or give {known.file} as published, {known.digest}"
    if source in _MADE:
        yield Fault(
            f"the {title} is {_MADE[source]}; the benchmark's is {name}",
            remedy=f"the benchmark's own is fetched with the benchmark's model, and without --dataset={source}",
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


@check("SPECULATION", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
def speculative_decoding(facts: JobFacts) -> Iterator[Fault]:
    """A server decodes speculatively only where the benchmark allows it."""
    job = facts.job
    if job.settings.api_server:
        yield Fault(
            "the server at --api_server was not started by cm4vllm: whether it decodes speculatively is not known"
            + (_NOT_SHOWN if over_network(job.division) else ""),
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


@check("SCENARIOS", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
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


@check("VALIDATION", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
def validation(facts: JobFacts) -> Iterator[Fault]:
    """Each scenario has a performance run and an accuracy run."""
    if missing := [str(mode) for mode in Mode if mode not in facts.job.modes]:
        yield Fault(
            f"the job has no {' and no '.join(missing)} run", remedy="add _performance-and-accuracy to the tags"
        )


@check("DATACENTER", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
def datacenter_category(facts: JobFacts) -> Iterator[Fault]:
    """The job is of the category datacenter."""
    yield Fault(
        f"the job is of the category {facts.job.category}",
        remedy="give --category=datacenter where the benchmark has it",
    )


_ECC_KEYS = {"host": "host_memory_configuration", "accelerators": "accelerator_memory_configuration"}
#: The interconnects that the division permits, as they may be spelled.
_FABRICS = re.compile(r"ethernet|802\.11|wi-?fi|infiniband|3gpp", re.IGNORECASE)


@check("ECC", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
def ecc(facts: JobFacts) -> Iterator[Fault]:
    """The memory of the host and of the accelerators has ECC, and it is on."""
    stated = facts.stated
    if facts.job.machine is not None:  # which is asked when the job runs there
        return
    for where, has_ecc in _memory(facts):
        key = _ECC_KEYS[where]
        if has_ecc is False:
            yield Fault(f"the memory of the {where} has no ECC, or it is off", remedy="switch ECC on")
        elif has_ecc is None and not _states_ecc(stated.get(key, "")):
            yield Fault(
                f"whether the memory of the {where} has ECC is not known: it cannot be detected here",
                remedy=f"state it in {key} of --system_file, for example: 12x 64 GB DDR5-4800 ECC",
            )


def _memory(facts: JobFacts) -> Iterator[tuple[str, bool | None]]:
    """Yield the kinds of memory that the job uses, each with whether it has ECC, None where that is not shown here."""
    yield "host", None if facts.elsewhere else detect_memory(facts.root).ecc
    if facts.elsewhere:
        ecc: list[bool | None] = [None] if facts.stated.get("accelerators_per_node") != "0" else []
    else:
        ecc = [] if facts.job.settings.device == "cpu" else [gpu.ecc for gpu in detect_gpus()]
    if ecc:
        yield "accelerators", False if False in ecc else None if None in ecc else True


def _states_ecc(text: str) -> bool:
    words = text.lower().replace("-", " ").split()
    return "ecc" in words and not {"no", "non", "without", "off"} & set(words)


@check("NETWORKING", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
def networking(facts: JobFacts) -> Iterator[Fault]:
    """The network cards of the host are known."""
    stated = facts.stated
    if facts.job.machine is not None:
        return
    cards = [] if facts.elsewhere else detect_network(facts.root)
    is_stated = stated.get("host_networking") and whole_number(stated.get("host_network_card_count", "0"))
    if not is_stated and not any(card.kind != "virtual" and card.megabits for card in cards):
        yield Fault(
            "no network card with a known rate was detected, and none is stated",
            remedy="state host_networking and host_network_card_count in --system_file",
        )


@check("SEPARATE", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
def separate_machines(facts: JobFacts) -> Iterator[Fault]:
    """The server and LoadGen run on different machines; that addresses belong to one machine is not known."""
    servers = facts.job.settings.api_server
    here = [url for url in base_urls(servers) if runs_here(url)] if servers else []
    remedy = "start the server on another machine, and give its address with --api_server"
    if not servers:
        yield Fault("the job starts the server on this machine, where LoadGen runs", remedy=remedy)
    elif here:
        yield Fault(f"the server at {', '.join(here)} is on this machine, where LoadGen runs", remedy=remedy)


@check("FABRIC", source=_SOURCE, remedy="", stage=Stage.JOB, each=whole)
def fabric(facts: JobFacts) -> Iterator[Fault]:
    """The network between the machines is described, and of a kind that is permitted."""
    stated = facts.stated
    if missing := [key for key in NETWORK_KEYS if key != "is_network" and key not in stated]:
        yield Fault(
            f"the network is not described: {', '.join(missing)}",
            remedy=f"state in --system_file: {', '.join(missing)}",
        )
    kind = stated.get("network_type", "")
    if kind and not _FABRICS.search(kind):
        yield Fault(
            f"network_type in --system_file is {kind}", remedy="connect the machines by a fabric that the rule permits"
        )
