"""The launcher for the nodes that --nodes asks for."""

import re
from collections.abc import Mapping

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.clusters.launchers.interface import Launcher
from cm4vllm.serving.clusters.launchers.local import LocalLauncher
from cm4vllm.serving.clusters.launchers.slurm import SlurmLauncher
from cm4vllm.serving.clusters.launchers.ssh import SshLauncher

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
    names, count = _asked(nodes)
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
    return _asked(nodes)[1]


def launcher_of(server: ServerRecord) -> Launcher | None:
    """Return the launcher that started a server over other machines; None for a server on this machine."""
    kind = _LAUNCHERS.get(server.nodes[0].launcher) if server.owned and server.nodes else None
    return kind(tuple(node.name for node in server.nodes)) if kind and kind is not LocalLauncher else None


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
