"""The official power client and server: mlcommons/power-dev at the commit of a round, unmodified.

All of their Python files are hashed into each session, and the checkers of a round accept those of some commits only.
"""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from cm4vllm.common import input_types
from cm4vllm.common.errors import InstallError, SourceUnavailable
from cm4vllm.common.files import given_path
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.common.git.git_source import extract, fetch_checkout, git_directory
from cm4vllm.common.settings import Settings
from cm4vllm.rules import PowerPrograms, default_round, round_terms

URL = "https://github.com/mlcommons/power-dev"
#: The programs below the folder of the sources.
CLIENT, SERVER = "ptd_client_server/client.py", "ptd_client_server/server.py"
_PARTS = ("ptd_client_server", "compliance")
_REMEDY = (
    "give a checkout or a git directory of mlcommons/power-dev that holds the commit: --power_src=DIR\n"
    f"(made elsewhere with: git clone --bare {URL})"
)


def provide(programs: PowerPrograms, source: Path | None, folder: Path) -> Path:
    """Write the programs of a round to `folder`, from the git repository `source` or from GitHub; return `folder`.

    Raises InstallError where they do not start with this Python, and SourceUnavailable where the commit cannot be
    reached.
    """
    require_python(programs)
    if (folder / CLIENT).is_file():
        return folder
    if source is None:
        patterns = tuple(f"/{part}/**" for part in _PARTS)
        return fetch_checkout(folder, URL, programs.commit, patterns, title="the power programs", remedy=_REMEDY)
    if (git := git_directory(source)) is None:
        raise SourceUnavailable(
            f"{source} is no git repository",
            cause="the programs are taken from a commit, so that nothing in them is changed",
            remedy=_REMEDY,
        )
    with staged_folder(folder) as staging:
        extract(git, programs.commit, _PARTS, staging, remedy=_REMEDY)
    return folder


def require_python(programs: PowerPrograms) -> None:
    """Raise InstallError where the programs of a round do not start with this Python."""
    if sys.version_info >= programs.python_below:
        below = ".".join(map(str, programs.python_below))
        raise InstallError(
            f"the official power client and server do not start with Python {platform.python_version()}",
            cause=f"since Python {below} their check of their own files takes an empty file for a changed one",
            remedy=f"make the environment with a Python below {below}: make clean setup PYTHON=python3.12",
        )


class ProgramInputs(Settings, frozen=True, kw_only=True):
    """The round of the power programs, the newest where none is given, and a git repository that has them."""

    round: input_types.Round = ""
    source: input_types.PowerPrograms = ""

    @property
    def programs(self) -> PowerPrograms:
        """The programs of the round."""
        return round_terms(self.round or default_round()).power

    @property
    def exports(self) -> dict[str, str]:
        """The key with which a recipe asks for the programs of its round, where it was given one."""
        return {"CM_MLPERF_POWER_VARIATIONS": round_terms(self.round).variation} if self.round else {}


def provide_asked(inputs: ProgramInputs, folder: Path) -> Path:
    """Write the programs of the round that is asked for to `folder`. Raises what `provide` raises, and UsageError."""
    return provide(inputs.programs, given_path(inputs.source) if inputs.source else None, folder)


def official_environment(folder: Path) -> dict[str, str]:
    """Return the environment of the official programs: no key of the user, and no program that could set the clock.

    `folder` is the working folder of the program, below which it also has its temporary files.
    """
    (folder / "no-programs").mkdir()
    env = {"PATH": str(folder / "no-programs"), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    env |= {"HOME": str(folder), "TMPDIR": str(folder)}
    return env | {name: value for name in ("PYTHONPATH",) if (value := os.environ.get(name))}


@contextmanager
def server_running(
    source: str, conf: Path, env: Mapping[str, str] | None = None, *, output: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the official server through the block, in the folder of its configuration. However that ends, so does it.

    What it prints goes to `output`, or to where this process prints.
    """
    with output.open("wb") if output else nullcontext() as log:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "cm4vllm.power.launched", f"{source}/{SERVER}", "-c", str(conf)],
            cwd=conf.parent,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT if log else None,
        )
    try:
        yield server
    finally:
        server.send_signal(signal.SIGINT)  # nothing where it has ended
        try:
            server.wait(15.0)  # it gives the analyzer its ranges back
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
