"""The reference client of MLPerf Endpoints and the official checker, each in an environment of its own.

The client is installed in editable form: only then does it record the commit of its checkout in each result.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from cm4vllm.common import input_types
from cm4vllm.common.errors import InstallError
from cm4vllm.common.files import given_path, require_space
from cm4vllm.common.programs.environments import install_pinned, make_environment, pip, require_success
from cm4vllm.common.programs.processes import run
from cm4vllm.common.progress import say, step
from cm4vllm.common.records import write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.endpoints.bundle import CheckerInstallation
from cm4vllm.endpoints.client import ClientAbilities, ClientInstallation, require_unmodified
from cm4vllm.endpoints.client_source import LOCK, client_checkout, is_tried, missing_lock, wanted_commit
from cm4vllm.rules import endpoints_rules

_ABILITIES = Path(__file__).with_name("inside") / "client_abilities.py"
CLIENT_FILE, CHECKER_FILE = "client.json", "checker.json"

#: What the environments take on the disk, and while their packages are unpacked.
_CLIENT_BYTES, _CHECKER_BYTES = 2 * 2**30, 2**28
#: Versions of Python for which the client's packages have wheels, the first choice first.
_PYTHONS = ("python3.12", "python3.13", "python3.14", "python3")
_CHECKER_VERSION = (
    "import submission_checker, importlib.metadata; print(importlib.metadata.version('endpoints-submission-cli'))"
)
_VERSION = "import sys; print(sys.executable, *sys.version_info[:2])"


class InstallationSettings(Settings, frozen=True, kw_only=True):
    """The inputs of get,mlperf,endpoints."""

    part: Annotated[Literal["client", "checker"], Key("CM_MLPERF_ENDPOINTS_PART")] = "client"
    commit: input_types.EndpointsCommit = ""
    source: input_types.EndpointsSource = ""
    python: input_types.EndpointsPython = ""


def require_installable(settings: InstallationSettings) -> list[str]:
    """Return notes on the client that is wanted, none for the checker.

    Raises InstallError where no Python is new enough, UsageError or SourceUnavailable for a commit that is missing.
    """
    if settings.part == "checker":
        return []
    find_python(settings.python)
    return _notes(wanted_commit(settings.commit, settings.source))


def _notes(commit: str) -> list[str]:
    if is_tried(commit):
        return []
    tried = ", ".join(each[:12] for each in endpoints_rules().client.commits)
    return [f"the reference client at {commit[:12]} was not tried with this version of cm4vllm, but {tried}"]


def provide(settings: InstallationSettings, folder: Path, recipe: Path) -> tuple[Path, str]:
    """Install the part that is asked for into `folder`; return its record and its version.

    `recipe` is the folder with the files that pin the packages.
    """
    if settings.part == "checker":
        checker = install_checker(folder, recipe / "requirements-checker.txt")
        write_record(folder / CHECKER_FILE, checker)
        return folder / CHECKER_FILE, checker.version
    source = given_path(settings.source) if settings.source else None
    commit = wanted_commit(settings.commit, settings.source)
    for note in _notes(commit):
        say(f"note: {note}")
    beside = recipe / "requirements-client.txt"
    client = install_client(folder, beside, source, commit, find_python(settings.python))
    write_record(folder / CLIENT_FILE, client)
    return folder / CLIENT_FILE, client.commit[:12]


def install_client(folder: Path, beside: Path, source: Path | None, commit: str, python: Path) -> ClientInstallation:
    """Install the client into `folder` and return it: `source` is a git directory at hand, None fetches the commit.

    `beside` pins what is installed beside the packages that the checkout itself pins. Raises InstallError,
    SourceUnavailable, DiskFull.
    """
    require_space(folder, _CLIENT_BYTES, "the reference client and what it needs")
    checkout = client_checkout(folder / "endpoints", source, endpoints_rules().client.repository, commit)
    with step("environment for the reference client"):
        own = make_environment(folder / "venv", python)
        require_success(
            install_pinned(own, beside, folder / "pip-beside.log"), f"the packages of {beside.name} cannot be installed"
        )
        require_success(
            install_pinned(own, locked_packages(own, checkout, commit), folder / "pip.log"),
            f"the reference client's packages cannot be installed as its {LOCK} pins them",
        )
        words = ["--no-deps", "--no-build-isolation", "--editable", str(checkout)]
        require_success(pip(own, words, folder / "pip-client.log"), "the reference client cannot be installed")
        require_success(
            run([own, "-P", "-m", "inference_endpoint.main", "--version"], log=folder / "proof.log"),
            "the installed reference client cannot be started",
        )
    abilities = abilities_of(own, checkout)
    client = ClientInstallation(python=str(own), checkout=str(checkout), commit=commit, abilities=abilities)
    require_unmodified(client)
    return client


def locked_packages(python: Path, checkout: Path, commit: str) -> Path:
    """Return a requirements file of the packages that the lock file of a checkout pins, beside the checkout.

    `python` is that of an environment that has uv. Raises SourceUnavailable without a lock file, InstallError for one
    that cannot be read.
    """
    if not (checkout / LOCK).is_file():
        raise missing_lock(commit)
    listed = checkout.with_name("requirements-locked.txt")
    # Nothing is asked of the network, and nothing of the user's own settings: the file alone counts.
    words = ["--frozen", "--offline", "--no-config", "--no-cache", "--no-default-groups", "--no-emit-project"]
    words += ["--no-annotate", "--no-header", "--quiet", "--format=requirements-txt", f"--python={python}"]
    words += [f"--project={checkout}", f"--output-file={listed}"]
    settings = [name for name in os.environ if name.startswith("UV_")]
    require_success(
        run([python.with_name("uv"), "export", *words], cwd=checkout.parent, without=settings),
        f"the {LOCK} of the reference client at {commit[:12]} cannot be read",
    )
    return listed


def abilities_of(python: Path, checkout: Path) -> ClientAbilities:
    """Return the abilities of the client in a checkout, by what its own modules have.

    `python` has the packages that it needs. Raises InstallError.
    """
    done = run([python, "-P", _ABILITIES, checkout])
    require_success(done, "the installed reference client cannot be asked what it can do")
    try:
        return msgspec.json.decode(done.tail(1), type=ClientAbilities)
    except ValueError as error:
        raise InstallError("the reference client's abilities cannot be read", cause=done.tail(5)) from error


def install_checker(folder: Path, lock: Path) -> CheckerInstallation:
    """Install the official checker into `folder` as `lock` pins it and return it. Raises InstallError, DiskFull."""
    require_space(folder, _CHECKER_BYTES, "the official checker of MLPerf Endpoints")
    rules = endpoints_rules().checker
    with step(f"environment for {rules.package} {rules.version}"):
        own = make_environment(folder / "venv")
        require_success(install_pinned(own, lock, folder / "pip.log"), f"{rules.package} cannot be installed")
        proof = run([own, "-P", "-c", _CHECKER_VERSION])
        require_success(proof, f"the installed {rules.package} cannot be imported")
    return CheckerInstallation(python=str(own), version=proof.output.strip())


def find_python(given: str = "") -> Path:
    """Return the Python for the client: the given one, else the first on PATH or of pyenv that is new enough.

    Raises InstallError where there is none.
    """
    least = endpoints_rules().client.least_python
    seen = []
    for candidate in [given] if given else [*_PYTHONS, *map(str, _of_pyenv())]:
        if (version_at := _version_of(candidate)) is None:
            continue
        path, version = version_at
        if version >= tuple(map(int, least.split("."))):
            return path
        seen.append(f"{candidate} is Python {version[0]}.{version[1]}")
    raise InstallError(
        f"the reference client needs Python {least} or newer",
        cause="; ".join(seen) or (f"{given} is no Python" if given else f"none of {', '.join(_PYTHONS)} is on PATH"),
        remedy="install one, and name it with --endpoints_python=PATH",
    )


def _version_of(candidate: str) -> tuple[Path, tuple[int, int]] | None:
    """Return a Python's own path and version; None for what is not found or is no Python."""
    if (path := shutil.which(candidate)) is None:
        return None
    match = re.fullmatch(r"(/.*) (\d+) (\d+)\n?", run([path, "-I", "-c", _VERSION]).output)
    return (Path(match[1]), (int(match[2]), int(match[3]))) if match else None


def _of_pyenv() -> list[Path]:
    """Return the Pythons that pyenv has installed, whichever of them it selects at present."""
    return sorted(Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser().glob("versions/3.*/bin/python3"))
