"""Checks of a job against its division's rules, before anything is downloaded, installed or started.

Each rule that can be known by then has a function here that says what is against it. A valid run is refused with all of
them; a rehearsal goes on, names them, and makes no submission tree.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cm4vllm.assets.model_identity import differences, is_from
from cm4vllm.assets.samples.audio_dataset import digest_of_clips
from cm4vllm.campaign.asset_sources import needs_calibration
from cm4vllm.campaign.job_checks.given_datasets import other_prompts
from cm4vllm.campaign.settings import Fault, Job
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import digest_of, typed_path
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.hardware.network import detect_network
from cm4vllm.hardware.system_file import read_system_file
from cm4vllm.records.described_system import NETWORK_KEYS
from cm4vllm.rules import Mode, audit, catalogue, division_rules, over_network, speculation
from cm4vllm.serving.options.fixed_options import speculative_options
from cm4vllm.serving.probing.server_requests import base_urls
from cm4vllm.submission.system_records import runs_here

#: The environment keys that are checked here and are not settings of the campaign.
_EXTRA, _SYSTEM_FILE = "CM_VLLM_SERVER_EXTRA_ARGS", "CM_MLPERF_SYSTEM_FILE"
_ECC_KEYS = {"host": "host_memory_configuration", "accelerators": "accelerator_memory_configuration"}


def division_faults(job: Job, env: Mapping[str, Any], root: Path = Path("/")) -> tuple[Fault, ...]:
    """Return all that is known to be against the rules of a job's division; nothing in a division without rules.

    `root` holds the /proc and /sys of this machine.
    """
    facts = _Facts(job, env, root)
    return tuple(
        Fault(rule, fact, remedy)
        for code, rule in division_rules(job.division, job.category).items()
        if code in _CHECKS
        for fact, remedy in _CHECKS[code](facts)
    )


def require_division_rules(job: Job, faults: tuple[Fault, ...]) -> None:
    """Raise UsageError for a result that the rules of its division forbid. A rehearsal is not a result.

    What a rehearsal cannot stand in for is refused in one, too: a system that is none of the division's kind.
    """
    if job.rehearsal:
        faults = tuple(fault for fault in faults if fault.rule.code in _OF_THE_SYSTEM)
    if faults:
        never = ", ".join(dict.fromkeys(fault.rule.code for fault in faults if not fault.remedy))
        remedies = dict.fromkeys(
            [
                *([f"{never}: cannot be met; rehearse the division with --execution_mode=test"] if never else []),
                *(fault.remedy for fault in faults if fault.remedy),
                "or give --division=open",
            ]
        )
        raise UsageError(
            f"this job cannot give a {'rehearsal' if job.rehearsal else 'result'} of the {job.division} division",
            cause="\n".join(fault.words for fault in faults),
            remedy="\n".join(remedies),
        )


def fault_notes(job: Job, faults: tuple[Fault, ...]) -> tuple[str, ...]:
    """Return the note of a rehearsal on the rules that it does not keep."""
    if not (faults and job.rehearsal):
        return ()
    return (
        *(f"{job.division} division, a valid run would be refused: {fault.words}" for fault in faults),
        f"no submission tree: one of the {job.division} division is made of jobs that keep these rules",
    )


@dataclass(frozen=True)
class _Facts:
    """The job, and the environment and the machine that it is checked in."""

    job: Job
    env: Mapping[str, Any]
    root: Path

    @property
    def stated(self) -> Mapping[str, str]:
        """The statements of the system file, empty without one."""
        path = str(self.env.get(_SYSTEM_FILE) or "")
        return read_system_file(typed_path(path)).stated if path else {}

    @property
    def elsewhere(self) -> bool:
        """Return True if the model is served on other machines, about which this machine shows nothing."""
        servers = self.job.settings.api_server
        return bool(servers) and not any(runs_here(url) for url in base_urls(servers))


#: Why a rule that the machines of a system keep cannot be known from LoadGen's.
_NOT_TOLD = "; vLLM's HTTP API, by which alone LoadGen's machine asks it, does not tell"

#: The breach of a rule and its remedy, for each fault; the remedy is empty where the division has none.
_Breaches = Iterator[tuple[str, str]]


def _model(facts: _Facts) -> _Breaches:
    job, (source, _, location) = facts.job, facts.job.sources.model.removeprefix("_").partition(".")
    own = catalogue().benchmark(job.benchmark.name).model
    remedy = f"name the benchmark's model: _mlcommons.{own} among the tags; --quantize=SCHEME quantises it"
    if job.settings.api_server:
        yield (
            "the server at --api_server was not started by cm4vllm: the files that it serves cannot be compared"
            + (_NOT_TOLD if over_network(job.division) else ""),
            "" if over_network(job.division) else f"leave --api_server out; {remedy}",
        )
    elif source == catalogue().benchmark(job.benchmark.name).stand_in:
        yield "the model is the stand-in, a tiny model that is trained here", remedy
    elif job.sources.dummy:
        yield "the model has random weights (_dummy)", remedy
    elif source == "path":
        differing = list(differences(typed_path(location), job.benchmark.name, quick=True))
        if differing:
            yield (
                f"the model in {location} is not {own}: {differing[0]}"
                + (f", and {len(differing) - 1} more" if len(differing) > 1 else ""),
                remedy,
            )
    elif not is_from(job.benchmark.name, location):
        yield f"the model is {location}; the benchmark's is {own}", remedy


def _calibration(facts: _Facts) -> _Breaches:
    sources = facts.job.sources
    name = catalogue().benchmark(facts.job.benchmark.name).calibration
    if needs_calibration(facts.job.quantisation) and name:
        yield from _published_file(sources.calibration, name, "calibration set", "--calibration_path")


def _dataset(facts: _Facts) -> _Breaches:
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


def _prompts(facts: _Facts) -> _Breaches:
    """Yield that prompts would be tokenised again, as far as dataset and model are files on this machine."""
    source, _, location = facts.job.sources.dataset.removeprefix("_").partition(".")
    if source != "path" or facts.job.benchmark.media is not None or typed_path(location).is_dir():
        return
    if why := other_prompts(typed_path(location), facts.job.sources.model):
        yield (
            f"the prompts of {Path(location).name} were tokenised for another model, and are tokenised again: {why}",
            "give the dataset as it is published, with the benchmark's model",
        )


def _published_file(variation: str, name: str, title: str, flag: str) -> _Breaches:
    source, _, location = variation.removeprefix("_").partition(".")
    known = catalogue().dataset(name)
    remedy = f"leave {flag} out, or give {known.file} as published, {known.digest}"
    if source == "tiny":
        yield (
            f"the {title} is the stand-in's; the benchmark's is {name}",
            "the benchmark's own is fetched with the benchmark's model, and without --dataset=tiny",
        )
    elif source == "path" and typed_path(location).is_dir():
        yield f"the {title} {Path(location).name} is a folder, of which no digest is published", remedy
    elif source == "path":
        digest = digest_of(typed_path(location), known.digest.partition(":")[0])
        if digest != known.digest:
            yield (
                f"the {title} {Path(location).name} has {digest}; {known.file} is published with {known.digest}",
                remedy,
            )
        elif known.clips and digest_of_clips(typed_path(location).parent, known.clips) != known.clips_digest:
            yield (
                f"the clips beside {Path(location).name} are not those that are published with it",
                f"leave {flag} out, or give all files of {known.mlcommons}",
            )


def _speculation(facts: _Facts) -> _Breaches:
    job = facts.job
    if job.settings.api_server:
        yield (
            "the server at --api_server was not started by cm4vllm: whether it decodes speculatively is not known"
            + (_NOT_TOLD if over_network(job.division) else ""),
            ""
            if over_network(job.division)
            else "leave --api_server out: a server that is started has no speculative decoding",
        )
    try:
        given = speculative_options(shlex.split(str(facts.env.get(_EXTRA) or "")))
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
        yield f"{option} in --extra_args: {where}", f"remove {option} from --extra_args"


def _scenarios(facts: _Facts) -> _Breaches:
    job, needed = facts.job, facts.job.benchmark.required_on(facts.job.category)
    if needed is None:
        return
    missing = [str(scenario) for scenario in needed.all_of if scenario not in job.scenarios]
    if needed.one_of and not set(needed.one_of) & set(job.scenarios):
        missing.append(" or ".join(needed.one_of))
    if missing:
        asked = [str(scenario) for scenario in needed.all_of] + [str(scenario) for scenario in needed.one_of[:1]]
        yield (
            f"{job.benchmark.name} needs {', '.join(missing)} beside {', '.join(job.scenarios)}",
            f"leave --scenario out, or name all: --scenario={','.join(asked)}",
        )


def _validation(facts: _Facts) -> _Breaches:
    missing = [str(mode) for mode in Mode if mode not in facts.job.modes]
    if missing:
        yield f"the job has no {' and no '.join(missing)} run", "add _performance-and-accuracy to the tags"


def _ecc(facts: _Facts) -> _Breaches:
    stated = facts.stated
    for where, has_ecc in (("host", None), *_stated_accelerators(stated)) if facts.elsewhere else _memory_here(facts):
        key = _ECC_KEYS[where]
        if has_ecc is False:
            yield f"the memory of the {where} has no ECC, or it is off", "switch ECC on"
        elif has_ecc is None and not _states_ecc(stated.get(key, "")):
            yield (
                f"whether the memory of the {where} has ECC is not known: it cannot be detected here",
                f"state it in {key} of --system_file, for example: 12x 64 GB DDR5-4800 ECC",
            )


def _memory_here(facts: _Facts) -> Iterator[tuple[str, bool | None]]:
    yield "host", detect_memory(facts.root).ecc
    yield from _gpu_memory(facts)


def _stated_accelerators(stated: Mapping[str, str]) -> Iterator[tuple[str, bool | None]]:
    """Yield the accelerators of machines that are only stated, unless there are none."""
    if stated.get("accelerators_per_node") != "0":
        yield "accelerators", None


def _gpu_memory(facts: _Facts) -> Iterator[tuple[str, bool | None]]:
    """Yield whether the GPUs' memory has ECC, where the job may use GPUs: off where it is off in one."""
    ecc = [] if facts.job.settings.device == "cpu" else [gpu.ecc for gpu in detect_gpus()]
    if ecc:
        yield "accelerators", False if False in ecc else None if None in ecc else True


def _states_ecc(text: str) -> bool:
    words = text.lower().replace("-", " ").split()
    return "ecc" in words and not {"no", "non", "without", "off"} & set(words)


def _networking(facts: _Facts) -> _Breaches:
    stated = facts.stated
    cards = [] if facts.elsewhere else detect_network(facts.root)
    detected = [card for card in cards if card.kind != "virtual" and card.megabits]
    counted = whole_number(stated.get("host_network_card_count", "0"))
    if not detected and not (stated.get("host_networking") and counted):
        yield (
            "no network card with a known rate was detected, and none is stated",
            "state host_networking and host_network_card_count in --system_file",
        )


def _datacenter(facts: _Facts) -> _Breaches:
    yield f"the job is of the category {facts.job.category}", "give --category=datacenter where the benchmark has it"


def _separate(facts: _Facts) -> _Breaches:
    """Yield the signs that a server shares this machine; it cannot be seen that addresses belong to one machine."""
    servers = facts.job.settings.api_server
    here = [url for url in base_urls(servers) if runs_here(url)] if servers else []
    remedy = "start the server on another machine, and give its address with --api_server"
    if not servers:
        yield "the job starts the server on this machine, where LoadGen runs", remedy
    elif here:
        yield f"the server at {', '.join(here)} is on this machine, where LoadGen runs", remedy


#: The interconnects that the division permits, as they may be spelled.
_FABRICS = re.compile(r"ethernet|802\.11|wi-?fi|infiniband|3gpp", re.IGNORECASE)


def _fabric(facts: _Facts) -> _Breaches:
    stated = facts.stated
    if missing := [key for key in NETWORK_KEYS if key != "is_network" and key not in stated]:
        yield f"the network is not described: {', '.join(missing)}", f"state in --system_file: {', '.join(missing)}"
    kind = stated.get("network_type", "")
    if kind and not _FABRICS.search(kind):
        yield f"network_type in --system_file is {kind}", "connect the machines by a fabric that the rule permits"


#: Rules that say what kind of system is measured, which a rehearsal needs as well as a result.
_OF_THE_SYSTEM = frozenset({"DATACENTER", "SEPARATE"})
#: The checks that can be made before a run, by the code of the rule. The job itself keeps the other rules: it asks for
#: the lengths and runs the tests that they state, asks the nodes for their names before each run, and draws the diagram
#: of the machines.
_CHECKS: Mapping[str, Callable[[_Facts], _Breaches]] = {
    "MODEL": _model,
    "CALIBRATION": _calibration,
    "DATASET": _dataset,
    "SPECULATION": _speculation,
    "SCENARIOS": _scenarios,
    "VALIDATION": _validation,
    "ECC": _ecc,
    "NETWORKING": _networking,
    "DATACENTER": _datacenter,
    "SEPARATE": _separate,
    "FABRIC": _fabric,
}
