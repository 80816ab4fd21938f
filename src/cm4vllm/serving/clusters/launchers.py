"""Launchers: ways to run a program on each of several nodes, and the one for the nodes that --nodes asks for."""

import re
import shlex
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.programs.processes import run
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.records.server import ServerRecord

#: srun: steps run beside each other and beside the batch script, each with the processors and the memory of its node.
_SRUN = (
    *("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none", "--unbuffered", "--kill-on-bad-exit=1"),
    "--input=0",
)
#: ssh: an unreachable host is reported after 10 s, a connection that has been lost after 3 x 5 s. There is one
#: connection for each program: with a shared one, the program would not end with its own command.
_SSH = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3", "-o", "ControlPath=none"),
)


@dataclass(frozen=True)
class Launcher(ABC):
    """A way to run a program on each of `nodes`, names each once, the first of which is the head.

    The command of `words` runs on this machine. Its standard input is that of the program, which reads its end once
    this machine's side is closed, however that happens; its standard output and error are those of the program.
    """

    nodes: tuple[str, ...]
    #: The value of --launcher.
    name: ClassVar[str]
    #: The variable that a job has by which this launcher is chosen; empty where there are no jobs.
    job_variable: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def on(cls, names: tuple[str, ...], count: int, environ: Mapping[str, str]) -> Self:
        """Return the launcher for the nodes of these names, or for `count` nodes where none is named.

        Raises UsageError where this machine cannot reach them.
        """

    @abstractmethod
    def words(self, node: str, program: Sequence[str]) -> list[str]:
        """Return the command, to be run on this machine, that runs `program` on a node."""

    @abstractmethod
    def address(self, node: str) -> str:
        """Return the address under which this machine and the other nodes reach a node. Raises CmError."""


class LocalLauncher(Launcher):
    """Processes of this machine in place of nodes: for a rehearsal of a start over several nodes, and for tests."""

    name = "local"

    @classmethod
    def on(cls, names: tuple[str, ...], count: int, environ: Mapping[str, str]) -> Self:
        return cls(names or tuple(f"node{number}" for number in range(1, count + 1)))

    def words(self, node: str, program: Sequence[str]) -> list[str]:
        return list(program)

    def address(self, node: str) -> str:
        return "127.0.0.1"


class SlurmLauncher(Launcher):
    """Nodes of the present allocation of Slurm: each program is a step of the job, started by srun."""

    name = "slurm"
    job_variable = "SLURM_JOB_ID"

    @classmethod
    def on(cls, names: tuple[str, ...], count: int, environ: Mapping[str, str]) -> Self:
        """Return the launcher for the nodes named, or the first `count`, of the allocation that this process runs in.

        Raises UsageError outside of an allocation, and for nodes that it does not have.
        """
        job = environ.get(cls.job_variable, "")
        if not job or shutil.which("srun") is None:
            raise UsageError(
                "--launcher=slurm needs an allocation of Slurm",
                cause="srun is not found on PATH" if job else "SLURM_JOB_ID is not set",
                remedy="run the command in a job: in a file for sbatch, or after salloc --nodes=N",
            )
        listed = environ.get("SLURM_JOB_NODELIST", "")
        done = run(["scontrol", "show", "hostnames", listed])
        allocated = tuple(done.output.split()) if done.ok else ()
        chosen = names or allocated[:count]
        if len(chosen) < count or not set(chosen) <= set(allocated):
            raise UsageError(
                f"--nodes={','.join(names) or count} is more than the allocation of Slurm has",
                cause=f"the job {job} has {listed or 'no nodes'}" if done.ok else done.tail(3),
                remedy="give sbatch or salloc as many with its own --nodes, or name nodes of the job",
            )
        return cls(chosen)

    def words(self, node: str, program: Sequence[str]) -> list[str]:
        return ["srun", *_SRUN, f"--nodelist={node}", *program]

    def address(self, node: str) -> str:
        """Return the address that Slurm itself reaches a node at (NodeAddr)."""
        done = run(["scontrol", "show", "node", "--oneliner", node])
        stated = re.search(r"\bNodeAddr=(\S+)", done.output) if done.ok else None
        remedy = "Slurm's NodeAddr of the node must be a name or an address that this machine can resolve"
        return _resolve(node, stated[1] if stated else node, remedy)


class SshLauncher(Launcher):
    """Hosts that are reached by ssh, with the user's own configuration, keys and agent.

    No password is asked for: a host that wants one is an error. The programs of a node end when the connection does,
    since their standard input then ends.
    """

    name = "ssh"

    @classmethod
    def on(cls, names: tuple[str, ...], count: int, environ: Mapping[str, str]) -> Self:
        """Return the launcher for hosts as ssh knows them.

        Raises UsageError for names that are missing or unusable, and without ssh.
        """
        if not names:
            raise UsageError(
                f"--nodes={count} does not name the nodes",
                cause="the command does not run in an allocation of Slurm, which would know them",
                remedy="give --nodes=HOST,HOST for ssh; --launcher=local starts processes of this machine, for a "
                "rehearsal",
            )
        if shutil.which("ssh") is None:
            raise UsageError(
                "--launcher=ssh needs the program ssh",
                cause="it is not found on PATH",
                remedy="install the OpenSSH client",
            )
        for name in names:
            if name.startswith("-") or any(letter.isspace() for letter in name):
                raise UsageError(f"{name!r} in --nodes is not the name of a host", remedy="give --nodes=HOST,HOST")
        return cls(names)

    def words(self, node: str, program: Sequence[str]) -> list[str]:
        # exec: no shell stays between sshd and the program. ssh joins its words, and the remote shell splits them.
        return ["ssh", *_SSH, node, f"exec {shlex.join(program)}"]

    def address(self, node: str) -> str:
        """Return the address of a host's name, as the user's configuration of ssh states it (`ssh -G`)."""
        stated = re.search(r"^hostname (.+)$", run(["ssh", "-G", node]).output, re.MULTILINE)
        remedy = "give --nodes the names of hosts that this machine can resolve"
        return _resolve(node, stated[1] if stated else node, remedy)


def _resolve(node: str, host: str, remedy: str) -> str:
    """Return the address of a node's host. Raises UsageError."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(
            f"the node {node} in --nodes has no address", cause=f"{host}: {error.strerror or error}", remedy=remedy
        ) from error


_KINDS: tuple[type[Launcher], ...] = (LocalLauncher, SlurmLauncher, SshLauncher)
_LAUNCHERS = {kind.name: kind for kind in _KINDS}
#: The values of --launcher; auto is the launcher of the allocation that the command runs in, else ssh.
LAUNCHERS = ("auto", *_LAUNCHERS)


def chosen_launcher(launcher: str, nodes: str, environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher of `nodes`, a number or names with commas between; None where no other node is asked for.

    Raises UsageError.
    """
    if launcher not in LAUNCHERS:
        raise UsageError(f"--launcher={launcher} is not usable", remedy=nearest(launcher, LAUNCHERS))
    names, count = _requested_nodes(nodes)
    if count == 1 and not names:
        if launcher != "auto":
            raise UsageError(f"--launcher={launcher} has no nodes", remedy="add --nodes, a number or HOST,HOST")
        return None
    if launcher == "auto":
        within = (kind.name for kind in _KINDS if kind.job_variable and environ.get(kind.job_variable))
        launcher = next(within, SshLauncher.name)
    return _LAUNCHERS[launcher].on(names, count, environ)


def node_count(nodes: str) -> int:
    """Return how many `nodes`, a number or names with commas between, are. Raises UsageError."""
    return _requested_nodes(nodes)[1]


def launcher_of(server: ServerRecord) -> Launcher | None:
    """Return the launcher that started a server over other machines; None for a server on this machine."""
    kind = _LAUNCHERS.get(server.nodes[0].launcher) if server.owned and server.nodes else None
    return kind(tuple(node.name for node in server.nodes)) if kind and kind is not LocalLauncher else None


def _requested_nodes(nodes: str) -> tuple[tuple[str, ...], int]:
    """Return the names in --nodes, and their number; a number alone names none."""
    text = nodes.strip()
    if not text:
        return (), 1
    names = tuple(name.strip() for name in text.split(","))
    if not text.isascii() or re.fullmatch(r"[+-]?[\d.]+", text):
        count = whole_number(text)
        if count is None or not 1 <= count <= 4096:
            raise UsageError(f"--nodes={text} is not usable", remedy="give a number from 1 to 4096, or HOST,HOST")
        return (), count
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(f"--nodes={text} names a node twice or an empty one", remedy="give --nodes=HOST,HOST")
    return names, len(names)
