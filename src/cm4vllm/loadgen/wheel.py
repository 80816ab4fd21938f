"""The LoadGen wheel of a round: seeds are compiled into it, so a round can only be run with its own."""

import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

from cm4vllm.common import input_types
from cm4vllm.common.errors import InstallError, UsageError
from cm4vllm.common.programs.environments import pip_settings
from cm4vllm.common.programs.processes import run
from cm4vllm.common.progress import step
from cm4vllm.common.settings import Key, Settings
from cm4vllm.rules import LoadGenWheel, Terms, round_terms

DISTRIBUTION = "mlcommons-loadgen"
_CONF_BEGIN = b"# The format of this config file"


class LoadGenSettings(Settings, frozen=True, kw_only=True):
    """The round, and the versions that are asked for: one, or the limits of a range."""

    round: input_types.Round
    version: Annotated[str, Key("CM_VERSION")] = ""
    minimum: Annotated[str, Key("CM_VERSION_MIN")] = ""
    maximum: Annotated[str, Key("CM_VERSION_MAX")] = ""


@dataclass(frozen=True)
class ProvidedLoadGen:
    """A usable LoadGen: its version, and the folder to put on PYTHONPATH, empty where the running Python has it."""

    version: str
    pythonpath: str


def usable_wheel(settings: LoadGenSettings) -> LoadGenWheel:
    """Return the requested versions that have the round's seeds. Raises UsageError if there are none."""
    of_round = round_terms(settings.round).loadgen
    first = max(filter(None, (of_round.first, settings.minimum, settings.version)), key=_numbers)
    last = min(filter(None, (of_round.last, settings.maximum, settings.version)), key=_numbers)
    if _numbers(first) > _numbers(last):
        asked = {"version": settings.version, "version_min": settings.minimum, "version_max": settings.maximum}
        raise UsageError(
            f"no LoadGen of round {settings.round} is "
            + ", ".join(f"{name}={value}" for name, value in asked.items() if value),
            cause=f"the versions from {of_round.first} to {of_round.last} have the seeds of this round",
            remedy="leave the version out, or choose the round",
        )
    wheel = min(last, max(first, of_round.wheel, key=_numbers), key=_numbers)
    return LoadGenWheel(wheel=wheel, first=first, last=last)


def provide(settings: LoadGenSettings, folder: Path) -> ProvidedLoadGen:
    """Return the running Python's LoadGen when it is of the round, else install the round's wheel into `folder`.

    Raises UsageError for a version of another round, InstallError when it cannot be installed or does not load.
    """
    versions, present = usable_wheel(settings), _present_version()
    if present is not None and _in_range(present, versions):
        _load("", settings.round)
        return ProvidedLoadGen(present, "")
    requirement = f"{DISTRIBUTION}=={versions.wheel}"
    target = folder / "site"
    with step(f"installing {requirement}"):
        done = run(
            [sys.executable, "-P", "-m", "pip", "install", "--no-deps", "--upgrade", "--target", target, requirement],
            env=pip_settings()[0],
        )
        if not done.ok:
            raise InstallError(
                f"{requirement} cannot be installed",
                cause=done.tail(10),
                remedy=f"check that pip reaches its package index: {sys.executable} -m pip download {requirement}",
            )
    _load(str(target), settings.round)
    return ProvidedLoadGen(versions.wheel, str(target))


def require_seeds(terms: Terms, version: str) -> None:
    """Raise InstallError for a LoadGen that has the seeds of another round."""
    round_ = round_terms(terms.round)
    if not _in_range(version, terms.loadgen) and version not in round_.builds:
        raise InstallError(
            f"LoadGen {version} has other seeds than those of round {terms.round}",
            remedy=f"get that of the round: cm run script --tags=get,mlperf,inference,loadgen,{round_.variation}",
        )


def compiled_in_conf(library: Path) -> str:
    """Return the mlperf.conf that is compiled into LoadGen's library, word for word.

    Raises InstallError when the library holds none, as before LoadGen 4.1.
    """
    data = library.read_bytes()
    begin = data.find(_CONF_BEGIN)
    if begin < 0:
        raise InstallError(f"{library} holds no mlperf.conf", cause="it is older than LoadGen 4.1")
    return data[begin : data.index(b"\0", begin)].decode()


def _present_version() -> str | None:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def _in_range(version: str, versions: LoadGenWheel) -> bool:
    return _numbers(versions.first) <= _numbers(version) <= _numbers(versions.last)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isascii() and part.isdigit())


def _load(pythonpath: str, round_name: str) -> None:
    """Prove in a process of its own that LoadGen loads."""
    paths = os.pathsep.join(filter(None, (pythonpath, os.environ.get("PYTHONPATH", ""))))
    done = run([sys.executable, "-P", "-c", "import mlperf_loadgen"], env={"PYTHONPATH": paths})
    if not done.ok:
        wheel = f"{DISTRIBUTION}=={round_terms(round_name).loadgen.wheel}"
        raise InstallError(
            f"the LoadGen of round {round_name} does not load",
            cause=done.tail(5),
            remedy=f"{sys.executable} -m pip install --force-reinstall {wheel}",
        )
