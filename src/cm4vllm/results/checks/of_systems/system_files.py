"""The system descriptions of a written tree: complete, of this division, of hardware that exists, and networks."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.records.described_system import KEYS, NETWORK_KEYS, NODES_DIFFER, NOT_STATED
from cm4vllm.records.known_hardware import contradictions
from cm4vllm.records.run import NETWORK_SUT
from cm4vllm.results.checks.subjects import described_systems, measured_results, with_submission
from cm4vllm.results.model import Performance, Result, Submission, System
from cm4vllm.rules import Division, over_network

_CONSTANTS = "tools/submission/submission_checker/constants.py, SYSTEM_DESC_REQUIRED_FIELDS"
_FILL = "state what the machine has in systems/<system>.json"
#: Keys that may be empty (SYSTEM_DESC_MEANINGFUL_RESPONSE_REQUIRED_FIELDS has all others).
_MAY_BE_EMPTY = frozenset(
    {
        "host_processor_frequency",
        "host_processor_caches",
        "host_processor_interconnect",
        "accelerator_frequency",
        "accelerator_interconnect_topology",
        "accelerator_on-chip_memories",
        "hw_notes",
        "sw_notes",
        "system_type_detail",
    }
)
_STATUSES = ("available", "preview", "rdi")
_TYPES = ("datacenter", "edge", "datacenter,edge", "edge,datacenter")
_NO_ANSWERS = frozenset({"undefined", "unknown", "tbd", "todo", "fixme", "xxx", "null", "none", "-", "?", "n/a", "na"})
#: The texts of these keys where they do not apply to a machine.
_NOT_APPLICABLE = frozenset({"n/a", "na", "none"})
#: The marks of a text that its author has not finished.
_LEFT_OPEN = re.compile(r"<[A-Za-z][\w -]*>|\b(?:TBD|TODO|FIXME)\b")
#: Keys that every machine must answer, and keys that every accelerator must answer.
_OF_ANY_MACHINE = frozenset(
    {
        "cooling",
        "host_memory_capacity",
        "host_memory_configuration",
        "host_networking",
        "host_processor_model_name",
        "host_storage_capacity",
        "host_storage_type",
        "operating_system",
    }
)
_OF_ACCELERATORS = frozenset(
    {
        "accelerator_memory_capacity",
        "accelerator_memory_configuration",
        "accelerator_model_name",
        "accelerator_host_interconnect",
    }
)
#: Keys that count; a core count may name two kinds of cores.
_COUNTS = frozenset({"number_of_nodes", "accelerators_per_node", "host_processors_per_node"})
#: The values that the template of an automation has for every machine.
_TEMPLATE = {"host_networking": "Gig Ethernet", "host_networking_topology": "N/A"}
#: A remark on nodes that differ: a key, and the values of the nodes.
_DIFFERENCE = re.compile(rf"{NODES_DIFFER} (\S+): (.*?)\.(?= [A-Z]|$)")
#: Caches are listed in one text, with `,`, `;` or a line between them.
_CORES = re.compile(r"L1d[^,;\n]{0,80}\((\d{1,9}) instances?\)")
_IS_NETWORK = NETWORK_KEYS[0]


@check("SYSTEM-KEYS", source=_CONSTANTS, remedy=_FILL, stage=Stage.TREE, each=described_systems)
def keys(system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """A system description has every key of the official list, and an answer where one is asked for."""
    missing = [key for key in KEYS if key not in stated]
    if missing:
        yield Fault("keys are missing in the system description", system.file, ", ".join(missing), "nothing", "a value")
    empty = [key for key in KEYS if key in stated and key not in _MAY_BE_EMPTY and not stated[key]]
    if empty:
        yield Fault(
            "the system description leaves open what must be answered",
            system.file,
            ", ".join(empty),
            ", ".join(repr(stated[key]) for key in empty),
            'a value; for none, the text "0" or "N/A"',
        )


@check(
    "SYSTEM-VALUES",
    source="tools/submission/submission_checker/checks/system_check.py",
    remedy=_FILL,
    stage=Stage.TREE,
    each=with_submission(described_systems),
)
def values(submission: Submission, system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """Submitter and division of a system description are those of its folder, status and type those that the rules
    know.
    """
    for key, allowed in {
        "division": (submission.division,),
        "submitter": (submission.submitter,),
        "status": _STATUSES,
        "system_type": _TYPES,
    }.items():
        value = str(stated.get(key, "")).strip()
        if key not in stated or value in allowed:
            continue
        yield Fault(
            f"the system description has a {key} that does not fit",
            system.file,
            key,
            value,
            " or ".join(allowed),
            severity=Severity.NOTE if value.replace(" ", "").lower() in {word.lower() for word in allowed} else None,
        )


@check(
    "SYSTEM-HARDWARE",
    source="src/cm4vllm/records/known, each row with its source",
    remedy=_FILL,
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=described_systems,
)
def hardware(system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """A system description does not contradict what is known of the hardware it names."""
    for entry in contradictions({key: str(value) for key, value in stated.items()}):
        other_kind = entry.key == "accelerator_memory_configuration" and _kind(entry.said) != _kind(entry.known)
        yield Fault(
            "the description contradicts what is known of the hardware",
            system.file,
            entry.key,
            entry.said,
            f"{entry.known} ({entry.source})",
            severity=Severity.NOTE if entry.is_hint else Severity.ERROR if other_kind else None,
        )


def _kind(memory: str) -> str:
    match = re.search(r"HBM|GDDR|LPDDR|DDR", memory, re.IGNORECASE)
    return match[0].upper() if match else ""


@check(
    "SYSTEM-CORES",
    source="lscpu, core and cache lists",
    remedy=_FILL,
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=described_systems,
)
def cores(system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """The cores of the description are those that its caches are listed for."""
    caches = _CORES.search(str(stated.get("host_processor_caches", "")))
    count, sockets = (
        whole_number(stated.get(key)) for key in ("host_processor_core_count", "host_processors_per_node")
    )
    listed = whole_number(caches[1]) if caches else None
    if caches and listed and count and sockets and listed not in (count * sockets, count):
        yield Fault(
            "core count and cache list do not fit together",
            system.file,
            "host_processor_core_count",
            f"{count} cores in each of {sockets} processors",
            f"{caches[1]} L1d caches, one a core",
        )


def accelerator_count(stated: Mapping[str, Any]) -> int:
    """Return how many accelerators a description states in all; 0 where it states none."""
    per_node, nodes = (whole_number(stated.get(key)) for key in ("accelerators_per_node", "number_of_nodes"))
    return (per_node or 0) * (nodes or 1)


@check(
    "SYSTEM-UNANSWERED",
    source=_CONSTANTS,
    remedy=_FILL,
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=described_systems,
)
def unanswered(system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """A description states what a machine has, or leaves the field out."""
    has_accelerators = accelerator_count(stated) > 0
    for key, value in stated.items():
        word = str(value).strip().lower()
        asked = key in _OF_ANY_MACHINE or (has_accelerators and key in _OF_ACCELERATORS)
        if word in _NO_ANSWERS and (asked or word not in _NOT_APPLICABLE):
            # A sign is no text that says what it means; where nothing is asked, N/A would do.
            yield Fault(
                "a question is not answered",
                system.file,
                key,
                str(value),
                "what the machine has" if asked else "what the machine has, or N/A",
                severity=None if asked or word[0].isalpha() else Severity.NOTE,
            )
        elif _LEFT_OPEN.search(str(value)):
            yield Fault("a part of an answer is left open", system.file, key, str(value), "what the machine has")


@check(
    "SYSTEM-NUMBERS",
    source=_CONSTANTS,
    remedy=_FILL,
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=described_systems,
)
def numbers(system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """A quantity has its unit, and no more digits than were measured; a count is a whole number."""
    for key, value in stated.items():
        text = str(value).strip()
        if re.search(r"\d\.\d{4,}", text) and key.endswith(("frequency", "capacity")):
            yield Fault("a quantity has more digits than were measured", system.file, key, text, "two or three digits")
        if key.endswith(("frequency", "memory_capacity", "storage_capacity")) and re.fullmatch(
            r"\d{2,}(?:\.\d+)?", text
        ):
            yield Fault("a quantity has no unit", system.file, key, text, "a unit: GHz, MHz, GB or TB")
        if key in _COUNTS and text and text.lower() not in _NO_ANSWERS and whole_number(value) is None:
            yield Fault("a count is no whole number", system.file, key, text, "a whole number, as 8")


@check(
    "SYSTEM-NODES",
    source="src/cm4vllm/hardware/system_description.py: the remark on nodes that differ",
    remedy="serve from nodes that are alike, and state host_networking in the system file (--system_file)",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=described_systems,
)
def nodes(system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """The nodes of a system are alike, and the description says what joins them."""
    yield from (
        Fault("the nodes of the system differ", system.file, key, values_, "equal nodes")
        for key, values_ in _DIFFERENCE.findall(str(stated.get("hw_notes", "")))
    )
    if (whole_number(stated.get("number_of_nodes")) or 1) > 1 and stated.get("host_networking") == NOT_STATED:
        yield Fault(
            "the description does not say what joins the nodes",
            system.file,
            "host_networking",
            NOT_STATED,
            "the network between the nodes",
            severity=Severity.NOTE,
        )


@check(
    "SYSTEM-TEMPLATE",
    source="defaults of the public automation, get-mlperf-inference-sut-description",
    remedy=_FILL,
    severity=Severity.NOTE,
    stage=Stage.TREE,
    each=described_systems,
)
def template(system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """A description is of this machine, not a template's."""
    if all(str(stated.get(key)) == value for key, value in _TEMPLATE.items()):
        yield Fault(
            "the network is described as in the automation's template",
            system.file,
            ", ".join(_TEMPLATE),
            ", ".join(_TEMPLATE.values()),
            "speed and kind of the network",
        )
    detail, kind = (str(stated.get(key, "")).lower() for key in ("system_type_detail", "system_type"))
    if "edge" in detail and "edge" not in kind:
        yield Fault(
            "the kind of system contradicts its type",
            system.file,
            "system_type_detail",
            str(stated.get("system_type_detail")),
            str(stated.get("system_type")),
            severity=Severity.WARNING,
        )


@check(
    "NETWORK-SYSTEM",
    source="tools/submission/submission_checker/constants.py, SYSTEM_DESC_REQUIRED_FIELDS_NETWORK_MODE",
    remedy="state the network in systems/<system>.json, or submit to the open division",
    stage=Stage.TREE,
    each=with_submission(described_systems),
)
def as_network(submission: Submission, system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """Systems of the network division are described as such, with every field of the network; those of the closed
    division are none.
    """
    wanted = submission.division in list(Division) and over_network(Division(submission.division))
    if submission.division != Division.OPEN and _is_network(stated.get(_IS_NETWORK)) is not wanted:
        yield Fault(
            f"the system description does not fit the {submission.division} division",
            system.file,
            _IS_NETWORK,
            str(stated.get(_IS_NETWORK, "")),
            "true" if wanted else "nothing",
        )
    # The official checkers ask for the fields wherever the first one says anything, were it "false".
    asked = NETWORK_KEYS[1:] if stated.get(_IS_NETWORK) else ()
    if missing := [key for key in asked if str(stated.get(key, "")).strip() in ("", NOT_STATED)]:
        yield Fault("the network is not described", system.file, ", ".join(missing), "nothing", "a value")


@check(
    "NETWORK-NAME",
    source='inference_policies/inference_rules.adoc, "QDL Constraints"; constants '
    "NETWORK_MODE_REQUIRED_SUBSTRING_IN_SUT_NAME",
    remedy="measure again with a query dispatch library that asks each node for its name",
    stage=Stage.TREE,
    each=with_submission(measured_results),
)
def named(submission: Submission, result: Result, part: Performance) -> Iterator[Fault]:
    """A system on other machines than LoadGen names itself "{NETWORK_SUT}" to it."""
    system, name = submission.system(result.system), str(part.settings.get("sut_name", ""))
    if system and _is_network(system.description.get(_IS_NETWORK)) and NETWORK_SUT not in name:
        yield Fault("the system names itself otherwise", part.log, "sut_name", name, f"{NETWORK_SUT}: ...")


def _is_network(value: object) -> bool:
    return str(value).lower() == "true"
