"""Checks of the machines that a job measures."""

import re
from collections.abc import Iterator, Mapping

from cm4vllm.campaign.job_checks.of_division.facts import SOURCE, JobFacts
from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.hardware.host import detect_network
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.records.described_system import NETWORK_KEYS
from cm4vllm.serving.probing.server_requests import base_urls
from cm4vllm.submission.system_records import runs_here

_ECC_KEYS = {"host": "host_memory_configuration", "accelerators": "accelerator_memory_configuration"}
#: The interconnects that the division permits, as they may be spelled.
_FABRICS = re.compile(r"ethernet|802\.11|wi-?fi|infiniband|3gpp", re.IGNORECASE)


@check("ECC", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
def ecc(facts: JobFacts) -> Iterator[Fault]:
    """The memory of the host and of the accelerators has ECC, and it is on."""
    stated = facts.stated
    for where, has_ecc in (("host", None), *_stated_accelerators(stated)) if facts.elsewhere else _memory_here(facts):
        key = _ECC_KEYS[where]
        if has_ecc is False:
            yield Fault(f"the memory of the {where} has no ECC, or it is off", remedy="switch ECC on")
        elif has_ecc is None and not _states_ecc(stated.get(key, "")):
            yield Fault(
                f"whether the memory of the {where} has ECC is not known: it cannot be detected here",
                remedy=f"state it in {key} of --system_file, for example: 12x 64 GB DDR5-4800 ECC",
            )


def _memory_here(facts: JobFacts) -> Iterator[tuple[str, bool | None]]:
    yield "host", detect_memory(facts.root).ecc
    yield from _gpu_memory(facts)


def _stated_accelerators(stated: Mapping[str, str]) -> Iterator[tuple[str, bool | None]]:
    """Yield the accelerators of machines that are only stated, unless there are none."""
    if stated.get("accelerators_per_node") != "0":
        yield "accelerators", None


def _gpu_memory(facts: JobFacts) -> Iterator[tuple[str, bool | None]]:
    """Yield whether the GPUs' memory has ECC, where the job may use GPUs: off where it is off in one."""
    ecc = [] if facts.job.settings.device == "cpu" else [gpu.ecc for gpu in detect_gpus()]
    if ecc:
        yield "accelerators", False if False in ecc else None if None in ecc else True


def _states_ecc(text: str) -> bool:
    words = text.lower().replace("-", " ").split()
    return "ecc" in words and not {"no", "non", "without", "off"} & set(words)


@check("NETWORKING", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
def networking(facts: JobFacts) -> Iterator[Fault]:
    """The network cards of the host are known."""
    stated = facts.stated
    cards = [] if facts.elsewhere else detect_network(facts.root)
    detected = [card for card in cards if card.kind != "virtual" and card.megabits]
    counted = whole_number(stated.get("host_network_card_count", "0"))
    if not detected and not (stated.get("host_networking") and counted):
        yield Fault(
            "no network card with a known rate was detected, and none is stated",
            remedy="state host_networking and host_network_card_count in --system_file",
        )


@check("SEPARATE", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
def separate_machines(facts: JobFacts) -> Iterator[Fault]:
    """The server and LoadGen run on different machines; that addresses belong to one machine is not known."""
    servers = facts.job.settings.api_server
    here = [url for url in base_urls(servers) if runs_here(url)] if servers else []
    remedy = "start the server on another machine, and give its address with --api_server"
    if not servers:
        yield Fault("the job starts the server on this machine, where LoadGen runs", remedy=remedy)
    elif here:
        yield Fault(f"the server at {', '.join(here)} is on this machine, where LoadGen runs", remedy=remedy)


@check("FABRIC", source=SOURCE, remedy="", stage=Stage.JOB, each=whole)
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
