"""The launcher for the nodes that --nodes asks for."""

import re
from collections.abc import Mapping

from cm4vllm.common.errors import UsageError
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.clusters.launchers.interface import Launcher
from cm4vllm.serving.clusters.launchers.local import LocalLauncher
from cm4vllm.serving.clusters.launchers.slurm import SlurmLauncher, slurm_launcher
from cm4vllm.serving.clusters.launchers.ssh import SshLauncher, ssh_launcher


def chosen_launcher(launcher: str, nodes: str, environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher of `nodes`, a number or names with commas between; None where no other node is asked for.

    `launcher` auto takes Slurm within an allocation, else ssh for names. Raises UsageError.
    """
    names, count = _asked(nodes)
    if count == 1 and not names:
        if launcher not in ("", "auto"):
            raise UsageError(f"--launcher={launcher} has no nodes", remedy="add --nodes, a number or HOST,HOST")
        return None
    if launcher in ("", "auto"):
        launcher = "slurm" if environ.get("SLURM_JOB_ID") else "ssh"
    if launcher == "slurm":
        return slurm_launcher(names, count, environ)
    if launcher == "local":
        return LocalLauncher(names or tuple(f"node{number}" for number in range(1, count + 1)))
    if not names:
        raise UsageError(
            f"--nodes={count} does not name the nodes",
            cause="the command does not run in an allocation of Slurm, which would know them",
            remedy="give --nodes=HOST,HOST for ssh; --launcher=local starts processes of this machine, for a rehearsal",
        )
    return ssh_launcher(names)


def node_count(nodes: str) -> int:
    """Return how many `nodes`, a number or names with commas between, are. Raises UsageError."""
    return _asked(nodes)[1]


def launcher_of(server: ServerRecord) -> Launcher | None:
    """Return the launcher that started a server over other machines; None for a server on this machine."""
    names = tuple(node.name for node in server.nodes)
    kind = server.nodes[0].launcher if server.owned and server.nodes else ""
    if kind == "slurm":
        return SlurmLauncher(names)
    return SshLauncher(names) if kind == "ssh" else None


def _asked(nodes: str) -> tuple[tuple[str, ...], int]:
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
