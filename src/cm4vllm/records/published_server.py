"""The command of a server as pages and capsules publish it: with variables for what is of this machine alone."""

from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from cm4vllm.common.host_addresses import is_loopback
from cm4vllm.common.programs.containers import Container, Mount, engines, run_words
from cm4vllm.common.secrets.command_lines import published_words
from cm4vllm.records.server import ContainerRecord, ServerRecord


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


def hosts_of(server: ServerRecord) -> set[str]:
    """Return the hosts of a server, its replicas, nodes and Ray cluster, but for the names of every machine itself."""
    hosts = {urlsplit(endpoint).hostname or "" for endpoint in server.endpoints}
    hosts |= {host for node in server.nodes for host in node.hosts}
    hosts |= {server.env.get("RAY_ADDRESS", "").rpartition(":")[0].strip("[]").lower()}
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
