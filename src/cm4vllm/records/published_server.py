"""A server, its machines and the private words of what was measured on them, as they are published."""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from cm4vllm.common.checking.private_words import PrivateWord, private_words
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import bytes_of, text_of
from cm4vllm.common.host_addresses import is_loopback
from cm4vllm.common.programs.containers import Container, Mount, engines, run_words
from cm4vllm.common.secrets.command_lines import published_words
from cm4vllm.records.machine import MACHINE_FILE, NODE_FILES
from cm4vllm.records.run import RUN_FILE
from cm4vllm.records.server import ContainerRecord, NodeRecord, ServerRecord

_UUID = re.compile(r'"uuid": "([^"]+)"')  # of GPUs and their parts, in machine.json


class _Server(msgspec.Struct, frozen=True):
    endpoint: str
    replicas: list[str] = []
    nodes: list[NodeRecord] = []
    env: dict[str, str] = {}


class _Settings(msgspec.Struct, frozen=True):
    server: _Server


class _Run(msgspec.Struct, frozen=True):
    """The fields of a run's record that name servers."""

    settings: _Settings


def server_words(
    server: ServerRecord, model_path: str, hosts: Collection[str] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return the server's environment and command with $MODEL for the model's folder and $CM4VLLM for our package's.

    `hosts` are named by variables, too: by default those of the server. Both are empty for a server that already ran.
    """
    if not server.argv:
        return {}, []
    names = {model_path: "MODEL", str(Path(__file__).parents[1]): "CM4VLLM"}
    env = [f"{name}={value}" for name, value in sorted(server.env.items())]
    argv = [Path(server.argv[0]).name, *server.argv[1:]]
    words = published_words([*env, *argv], names, hosts_of(server) if hosts is None else hosts)
    return dict(word.split("=", 1) for word in words[: len(env)]), words[len(env) :]


def hosts_of(server: ServerRecord | _Server) -> set[str]:
    """Return the hosts of a server, its replicas, nodes and Ray cluster, but for the names of every machine itself."""
    addresses = [server.endpoint, *server.replicas, f"//{server.env.get('RAY_ADDRESS', '')}"]
    hosts = {urlsplit(address).hostname or "" for address in addresses}
    hosts |= {host for node in server.nodes for host in node.hosts}
    return {host for host in hosts if host and not is_loopback(host)}


def container_words(record: ContainerRecord, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in the container, as it can be given by hand."""
    return run_words(engines()[record.engine], described_container(record, argv))


def described_container(record: ContainerRecord, program: Sequence[str]) -> Container:
    """Return the container in which `program` runs, as its record describes it."""
    return Container(
        image=record.reference,
        program=tuple(program),
        device=record.device,
        shm_size=record.shm_size,
        host_network=True,
        mounts=tuple(Mount(text.removesuffix(":ro"), writable=not text.endswith(":ro")) for text in record.mounts),
        passed=tuple(record.passed),
        options=tuple(record.options),
    )


def words_of(out: Path) -> list[PrivateWord]:
    """Return the private words of this machine, of its GPUs and of the servers that the runs in `out` measured."""
    machines = [out / "system" / MACHINE_FILE, *(out / "system").glob(NODE_FILES)]
    facts = "\n".join(text_of(machine) for machine in machines if machine.is_file())
    folders = [str(out.parent.absolute()), os.environ.get("CM_REPOS", "")]
    return private_words(servers=servers_of(out), serials=set(_UUID.findall(facts)), folders=folders)


def servers_of(out: Path) -> set[str]:
    """Return the hosts of the servers that the runs in `out` asked, but for what every machine calls itself.

    Raises SubmissionError for a record that does not tell them: a host that is not known cannot be looked for.
    """
    hosts: set[str] = set()
    for record in sorted(out.glob(f"runs/*/*/*/*/{RUN_FILE}")):
        try:
            hosts |= hosts_of(msgspec.json.decode(bytes_of(record), type=_Run).settings.server)
        except (OSError, ValueError, RecursionError) as error:
            raise SubmissionError(
                f"{record} does not say which servers its run asked",
                cause=str(error),
                remedy="their hosts may not be published: measure the run again, or move its folder out of the results",
            ) from error
    return hosts
