"""Copies of this machine's installation on nodes that do not share its files: the same folders at the same paths.

A folder goes to a node as a tar archive through the launcher, whose standard input is that of the program there. What a
node shares with this machine is found by a file that is made here, and never written to.
"""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from cm4vllm.common.errors import ServerUnreachable
from cm4vllm.common.progress import say, step
from cm4vllm.serving.clusters.launchers import Launcher
from cm4vllm.serving.clusters.node_processes import node_output

#: What belongs to the operating system, which each node has of its own.
_SYSTEM = (Path("/usr"), Path("/bin"))
#: Answers of a node about a folder: it is that of this machine, a copy with a digest, or another one.
_SHARED = "shared"
_ASK = 'if [ -e "$1" ]; then echo shared; else cat "$2" 2>/dev/null || echo none; fi'
_ANSWER_S, _COPY_S = 60.0, 4 * 3600.0


def installation(python: Path, model: str) -> list[Path]:
    """Return the folders that a node needs: cm4vllm, its Python, vLLM's environment `python`, the folder `model`."""
    folders = [Path(__file__).resolve().parents[3], Path(sys.prefix), Path(sys.base_prefix)]
    folders += [python.absolute().parents[1], python.resolve().parents[1]]
    if Path(model).is_dir():
        folders.append(Path(model).resolve())
    whole = [folder for folder in dict.fromkeys(folders) if folder != Path("/") and not _within(folder, _SYSTEM)]
    return [folder for folder in whole if not _within(folder, [other for other in whole if other != folder])]


def copy_to_nodes(launcher: Launcher, folders: Sequence[Path]) -> None:
    """Copy folders to all nodes that neither share them nor have this copy; all nodes at the same time.

    Raises ServerUnreachable naming the node that could not be copied to.
    """
    digests = [_digest(folder) for folder in folders]
    title = f"copying the installation to {len(launcher.nodes)} nodes by {launcher.name}"
    with ExitStack() as stack:
        # One file for all nodes, until the last copy is made: tar fails on a folder that changes meanwhile.
        marks = [
            stack.enter_context(tempfile.NamedTemporaryFile(prefix=".cm4vllm-shared-", dir=folder)).name
            for folder in folders
        ]
        stack.enter_context(step(title))
        threads = stack.enter_context(ThreadPoolExecutor(min(16, len(launcher.nodes)), "copies"))
        done = threads.map(lambda node: _copied(launcher, node, folders, marks, digests), launcher.nodes)
        for node, copied in zip(launcher.nodes, done, strict=True):
            names = ", ".join(map(str, copied))
            say(f"{node}: {f'copied {names}' if copied else 'has all of it'}")


def _copied(
    launcher: Launcher, node: str, folders: Sequence[Path], marks: Sequence[str], digests: Sequence[str]
) -> list[Path]:
    """Copy what a node lacks, and return it; a node that sees the file of `marks` in a folder shares the folder."""
    copied = []
    for folder, mark, digest in zip(folders, marks, digests, strict=True):
        stamp = folder.with_name(f".{folder.name}.cm4vllm-copy")
        answer = _asked(launcher, node, ["sh", "-c", _ASK, "sh", mark, str(stamp)])
        if answer in (_SHARED, digest):
            continue
        _send(launcher, node, folder)
        _asked(launcher, node, ["sh", "-c", 'echo "$1" > "$2"', "sh", digest, str(stamp)])
        copied.append(folder)
    return copied


def _asked(launcher: Launcher, node: str, program: Sequence[str]) -> str:
    failure, output = node_output(launcher, node, program, _ANSWER_S)
    lines = output.splitlines()
    if failure:
        raise _failed(launcher, node, "\n".join(lines[-6:]) or failure)
    return lines[-1].strip() if lines else ""


def _send(launcher: Launcher, node: str, folder: Path) -> None:
    place = folder.relative_to("/")
    names = ["--exclude=.cm4vllm-shared-*", "--exclude=__pycache__", str(place)]
    with subprocess.Popen(["tar", "-C", "/", "-cf", "-", *names], stdout=subprocess.PIPE) as archive:
        done = subprocess.run(
            launcher.words(node, ["tar", "-C", "/", "-xf", "-"]),
            stdin=archive.stdout,
            capture_output=True,
            timeout=_COPY_S,
            check=False,
        )
    if done.returncode or archive.returncode:
        raise _failed(launcher, node, "\n".join(done.stderr.decode(errors="replace").splitlines()[-6:]))


def _failed(launcher: Launcher, node: str, cause: str) -> ServerUnreachable:
    return ServerUnreachable(
        f"the installation cannot be copied to the node {node}",
        cause=f"{launcher.name}: {cause}",
        remedy="see that the node can be reached without a password, has tar, and lets you write at the same paths; or "
        "share the folders by a file system",
    )


def _digest(folder: Path) -> str:
    """Return a digest of the names, sizes and times of a folder's files: a copy keeps them."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".cm4vllm-shared-"):
            state = path.stat()
            digest.update(f"{path.relative_to(folder)}\0{state.st_size}\0{int(state.st_mtime)}\0".encode())
    return digest.hexdigest()


def _within(folder: Path, others: Sequence[Path]) -> bool:
    return any(folder.is_relative_to(other) for other in others)
