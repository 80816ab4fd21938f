"""The Python that recipes run in, and the packages it has or gets."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.errors import InstallError, UsageError
from cm4vllm.common.programs.environments import require_success
from cm4vllm.common.programs.processes import exit_in_words, run
from cm4vllm.common.progress import step
from cm4vllm.engine.format.versions import version_key

#: The option of pip with which what is there is installed once more.
FORCE = "--force-reinstall"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][\w.\-]*)(?:\[[^\]]*\])?\s*([^;#\\]*)")
_PACKAGE = re.compile(r"[A-Za-z0-9][\w.\-]*(\[[\w,.\-]*\])?")
#: The conditions that are understood here; of all others (`~=`, `!=`, `==2.*`, an epoch) pip decides.
_CONDITION = re.compile(r"(==|>=|<=|>|<)\s*([\w.+\-]+)")


@dataclass(frozen=True, slots=True)
class Python:
    """A Python interpreter."""

    path: Path
    version: str
    is_virtual: bool


def inspect_python(path: str = "") -> Python:
    """Return the Python at `path`, or the one that runs this. Raises UsageError when it does not run."""
    if not path or Path(path) == Path(sys.executable):
        version = ".".join(map(str, sys.version_info[:3]))
        return Python(Path(sys.executable), version, sys.prefix != sys.base_prefix)
    code = "import sys; print(*sys.version_info[:3], sep='.'); print(sys.prefix != sys.base_prefix)"
    try:
        answer = run([path, "-I", "-c", code], timeout_s=30)
    except OSError as error:
        raise UsageError(f"{path} is not a Python", cause=str(error)) from error
    lines = answer.output.split()
    if not answer.ok or len(lines) < 2:
        raise UsageError(f"{path} is not a Python", cause=answer.tail(5) or exit_in_words(answer.status))
    return Python(Path(path), lines[-2], lines[-1] == "True")


def env_name(package: str) -> str:
    """Return the name of a package as environment keys spell it: upper case, with underscores, without an extra."""
    return re.sub(r"[^A-Z0-9]", "_", package.partition("[")[0].upper())


def installed_version(package: str) -> str:
    """Return the version of a package (`name` or `name[extra]`) in the running Python; empty without it."""
    from importlib import metadata  # costs more than all of the engine's own modules, and few runs need it

    try:
        return metadata.version(package.partition("[")[0])
    except metadata.PackageNotFoundError:
        return ""


def require_package(package: str, condition: str, options: Sequence[str]) -> str:
    """Install a package, unless a version that `condition` allows (`==1.2`, `>=1,<=2`, or empty) is there already.

    `options` are pip's. Returns its version. Raises UsageError without a name and InstallError when pip fails.
    """
    if not _PACKAGE.fullmatch(package):
        raise UsageError(
            f"{package!r} is not the name of a package" if package else "which package?",
            remedy="for example: cm run script --tags=get,generic-python-lib,_package.numpy",
        )
    if FORCE in options or needs(package, condition):
        _install([f"{package}{condition}"], f"install {package}{condition}", options)
    return installed_version(package)


def needs(package: str, condition: str) -> bool:
    """Return whether the running Python lacks a package (`name` or `name[extra]`) in a version that fits."""
    return not _is_allowed(installed_version(package), condition)


def requirements_of(recipe: str) -> Path:
    """Return the requirements.txt of the repository that a recipe belongs to: two folders above it."""
    return Path(recipe).resolve().parents[1] / "requirements.txt"


def require_file(requirements: Path, options: Sequence[str]) -> None:
    """Install what is missing of a requirements file; pip, with these options, runs only when something is missing.

    Raises InstallError when the file is missing or pip fails.
    """
    if not requirements.is_file():
        raise InstallError(f"{requirements} does not exist", remedy="use a complete checkout, or pip install cm4vllm")
    missing = missing_of(requirements)
    if missing or FORCE in options:
        number = f"{len(missing)} packages" if missing else "the packages"
        _install(["-r", str(requirements)], f"install {number} of {requirements}", options)
        if still := missing_of(requirements):
            raise InstallError(
                f"pip succeeded, but {len(still)} packages of {requirements} are missing in {sys.executable}",
                cause=", ".join(still),
                remedy=f"install them by hand: {sys.executable} -m pip install -r {requirements}",
            )


def all_listed(path: Path) -> list[str]:
    """Return the packages that a file of requirements lists."""
    return [name for name, _ in listed_packages(path)]


def listed_once() -> Callable[[Path], list[str]]:
    """Return a function as `missing_of` for a Python that has nothing yet: what a file lists is installed once."""
    given: set[Path] = set()

    def missing(requirements: Path) -> list[str]:
        packages = [] if requirements in given else all_listed(requirements)
        given.add(requirements)
        return packages

    return missing


def missing_of(requirements: Path) -> list[str]:
    """Return the requirements of a file that the running Python does not fulfil.

    Where pip installed cm4vllm itself, it also saw to what it needs, in versions that suit the rest of that Python.
    """
    present = _installed_packages()
    if "cm4vllm" in present:
        return []
    return [
        f"{name}{condition}"
        for name, condition in listed_packages(requirements)
        if not _is_allowed(present.get(_normal_name(name), ""), condition)
    ]


def listed_packages(requirements: Path) -> Iterator[tuple[str, str]]:
    """Yield name and condition of each package that a requirements file lists, with hashes or without."""
    for line in requirements.read_text(encoding="utf-8").splitlines():
        requirement = _REQUIREMENT.match(line.strip())
        if requirement:
            yield requirement[1], requirement[2].replace(" ", "")


def _installed_packages() -> dict[str, str]:
    """Return all packages of the running Python from the names of their metadata, without reading them."""
    present: dict[str, str] = {}
    for folder in map(Path, sys.path):
        # A pip without the package wheel, as venv gives on Debian 12, leaves egg-info where a package comes as source.
        for info in (*folder.glob("*.dist-info"), *folder.glob("*.egg-info")):
            name, _, rest = info.stem.partition("-")
            present.setdefault(_normal_name(name), rest.partition("-py")[0])
    return present


def _normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_allowed(version: str, condition: str) -> bool:
    return bool(version) and all(_holds(version, part.strip()) for part in condition.split(",") if part.strip())


def _holds(version: str, part: str) -> bool:
    """Return True if a version meets one condition, such as `>=1.2`."""
    condition = _CONDITION.fullmatch(part)
    if not condition:
        return False
    sign, other = condition.groups()
    have, want = version_key(version), version_key(other)
    if sign == "==":
        return have == want and ("+" not in other or version == other)
    return {">=": have >= want, "<=": have <= want, ">": have > want, "<": have < want}[sign]


def _install(arguments: list[str], title: str, options: Sequence[str]) -> None:
    pip = [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    with step(title):
        require_success(run([*pip, *options, *arguments]), f"cannot {title}")
    importlib.invalidate_caches()
