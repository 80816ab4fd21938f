"""The LoadGen wheel of a round: seeds are compiled into it, so a round can only be run with its own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cm4vllm.common.errors import InstallError
from cm4vllm.common.processes import run
from cm4vllm.common.progress import step
from cm4vllm.rules import RoundTerms

__all__ = ["DISTRIBUTION", "MLPERF_CONF", "LoadGenWheel", "compiled_in_conf", "provide"]

DISTRIBUTION = "mlcommons-loadgen"
#: The name of LoadGen's own settings, which user.conf adds to.
MLPERF_CONF = "mlperf.conf"
_CONF_BEGIN = b"# The format of this config file"


@dataclass(frozen=True)
class LoadGenWheel:
    """A usable LoadGen: its version, and the folder to put on PYTHONPATH, empty where the running Python has it."""

    version: str
    pythonpath: str


def provide(round_: RoundTerms, folder: Path) -> LoadGenWheel:
    """Return the running Python's LoadGen when it is of the round, else install the round's wheel into `folder`.

    Raises InstallError when it cannot be installed or does not load.
    """
    present = _present()
    if present is not None and _in_range(present, round_):
        _load("", round_)
        return LoadGenWheel(present, "")
    requirement = f"{DISTRIBUTION}=={round_.loadgen.wheel}"
    target = folder / "site"
    with step(f"installing {requirement}"):
        done = run([sys.executable, "-m", "pip", "install", "--no-deps", "--upgrade", "--target", target, requirement])
    if not done.ok:
        raise InstallError(
            f"{requirement} cannot be installed",
            cause=done.tail(10),
            remedy=f"check that pip reaches its package index: {sys.executable} -m pip download {requirement}",
        )
    _load(str(target), round_)
    return LoadGenWheel(round_.loadgen.wheel, str(target))


def compiled_in_conf(library: Path) -> str:
    """Return the mlperf.conf that is compiled into LoadGen's library, word for word.

    Raises InstallError when the library holds none, as before LoadGen 4.1.
    """
    data = library.read_bytes()
    begin = data.find(_CONF_BEGIN)
    if begin < 0:
        raise InstallError(f"{library} holds no mlperf.conf", cause="it is older than LoadGen 4.1")
    return data[begin : data.index(b"\0", begin)].decode()


def _present() -> str | None:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def _in_range(version: str, round_: RoundTerms) -> bool:
    return _numbers(round_.loadgen.first) <= _numbers(version) <= _numbers(round_.loadgen.last)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _load(pythonpath: str, round_: RoundTerms) -> None:
    """Prove in a process of its own that LoadGen loads."""
    paths = os.pathsep.join(path for path in (pythonpath, os.environ.get("PYTHONPATH", "")) if path)
    done = run([sys.executable, "-c", "import mlperf_loadgen"], env={"PYTHONPATH": paths})
    if not done.ok:
        again = f"{sys.executable} -m pip install --force-reinstall {DISTRIBUTION}=={round_.loadgen.wheel}"
        raise InstallError(f"the LoadGen of round {round_.name} does not load", cause=done.tail(5), remedy=again)
