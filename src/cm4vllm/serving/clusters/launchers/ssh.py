"""Nodes that are reached by ssh, with the user's own configuration, keys and agent.

No password is asked for: a host that wants one is an error. The programs of a node end when the connection does, since
their standard input then ends.
"""

import shlex
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from cm4vllm.common.errors import UsageError
from cm4vllm.common.programs.processes import run

#: An unreachable host is reported after 10 s, a connection that has been lost after 3 x 5 s.
_OPTIONS = (
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
    # One connection for each program: with a shared one, the program would not end with its own command.
    "-o",
    "ControlPath=none",
)


@dataclass(frozen=True)
class SshLauncher:
    """Hosts of ssh."""

    nodes: tuple[str, ...]
    name: ClassVar[str] = "ssh"
    job_variable: ClassVar[str] = ""

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
        return ["ssh", *_OPTIONS, node, f"exec {shlex.join(program)}"]

    def address(self, node: str) -> str:
        """Return the address of a host's name, as the user's configuration of ssh states it (`ssh -G`)."""
        done = run(["ssh", "-G", node])
        host = next(
            (
                value
                for key, _, value in (line.partition(" ") for line in done.output.splitlines())
                if key == "hostname"
            ),
            node,
        )
        try:
            return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise UsageError(
                f"the node {node} in --nodes has no address",
                cause=f"{host}: {error.strerror or error}",
                remedy="give --nodes the names of hosts that this machine can resolve",
            ) from error
