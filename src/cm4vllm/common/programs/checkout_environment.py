"""The environment of a checkout, .venv: how it is made, and how packages are installed into it.

`make` calls this through environment.py, before any package is installed: only the standard library can be imported.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import CmError, InstallError, translated_os_errors
from cm4vllm.common.files import require_space, write_json
from cm4vllm.common.programs.environments import pinned_requirements, pip_settings, require_success, site_packages
from cm4vllm.common.programs.processes import Completed

#: Have packages imported from another place than the environment.
_MISLEADING = ("PYTHONHOME", "PYTHONPATH")
#: What a virtual environment takes before anything but pip is installed into it.
_VENV_BYTES = 40 * 2**20
#: Lists uv, which pip installs.
_TOOLS = "requirements-tools.txt"
#: What earlier versions left in the environments that they made.
_EARLIER = (".installed", ".uv", "uv.log")


def install(
    folder: str,
    record_file: str,
    record: dict[str, Any],
    reason: str,
    *,
    base: str,
    kind: str,
    digests: dict[str, str],
    lock: int,
) -> None:
    """Make the environment `folder` again where there is a reason, and install what requirements files pin.

    `record` is that of environment.py; while anything is changed, it says that the environment is not whole. `base` is
    the program of the Python to use, `kind` the code that prints which kind it is, `lock` the descriptor of a file that
    is locked: the programs that install hold it, too, and so until the last of them has ended. Ends the process where
    it fails.
    """
    place = Path(folder)

    def run(*words: str | Path) -> Completed:
        """Run a command and return its status and output."""
        argv = [str(word) for word in words]
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            pass_fds=[lock],
        )
        return Completed(tuple(argv), done.returncode, done.stdout.decode(errors="replace"))

    try:
        settings, unused = pip_settings()
        if ignored := [*(name for name in _MISLEADING if os.environ.pop(name, "")), *unused]:
            print(f"not used while packages are installed: {', '.join(ignored)}", flush=True)
        os.environ.update(settings)
        with translated_os_errors("install into", place):
            if reason:
                _set_aside(place, ours=bool(record))
                record = {"place": str(place.absolute()), "base": base, "installed": {}}
            write_json(Path(record_file), {**record, "whole": False})
            if reason:
                _clear(place, reason, Path(record_file))
                made = run(base, "-I", "-m", "venv", place)
                if not made.ok:  # it does not print why its pip could not be installed
                    require_space(place, _VENV_BYTES, "a virtual environment")
                require_success(made, "a virtual environment cannot be made")
                record["kind"] = run(place / "bin" / "python", "-I", "-c", kind).output
                _find_package(place)
            with _cache(place):
                _install(run, place, [name for name in digests if record["installed"].get(name) != digests[name]])
            record["installed"].update(digests)
            write_json(Path(record_file), {**record, "whole": True})
    except CmError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _set_aside(place: Path, *, ours: bool) -> None:
    """Move away what stands at the place of the environment and was not made by this program."""
    if ours or not os.path.lexists(place) or any((place / name).exists() for name in _EARLIER):
        return
    if not place.is_dir() or any(place.iterdir()):
        names = (place.with_name(f"{place.name}.aside-{number}") for number in count(1))
        aside = next(name for name in names if not os.path.lexists(name))
        place.rename(aside)
        print(f"{place} was not made by make: it is {aside} from now on", flush=True)


def _clear(place: Path, reason: str, record_file: Path) -> None:
    """Empty the folder of the environment but for its record, by which it is known when this is killed."""
    left = [path for path in place.iterdir() if path.name != record_file.name]
    if left:
        print(f"making {place}/ again: {reason}", flush=True)
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _find_package(place: Path) -> None:
    """Make the environment import cm4vllm from the checkout.

    Not `pip install -e`: it would copy cmr.yaml, automation/ and script/ beside the environment's packages, where cmind
    finds them before the checkout. A relative line, because Python reads the file in the encoding of the locale.
    """
    packages = site_packages(place)
    source = Path(__file__).parents[3]
    (packages / "cm4vllm.pth").write_text(os.path.relpath(source, packages.absolute()) + "\n", encoding="utf-8")


@contextmanager
def _cache(place: Path) -> Iterator[None]:
    """Keep what pip and uv download in the environment meanwhile, where the user's own cache is read-only."""
    trial = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / f"cm4vllm-{os.getpid()}"
    try:
        trial.mkdir(parents=True)
        trial.rmdir()
    except OSError:
        own = place / "cache"
        os.environ.update(XDG_CACHE_HOME=str(own.absolute()))
        yield
        shutil.rmtree(own, ignore_errors=True)
    else:
        yield


def _install(run: Callable[..., Completed], place: Path, names: list[str]) -> None:
    """Install what requirements files pin: a package whose bytes have another hash is refused, and one not listed.

    uv takes a sixth of pip's time, but does not read pip's settings: where it reaches no index, or cannot be installed
    itself, pip installs. Raises CmError.
    """
    python, uv = place / "bin" / "python", place / "bin" / "uv"
    # Without --use-pep517 pip warns of rouge-score, which is published as source without a pyproject.toml.
    pip = (
        python,
        "-I",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--require-hashes",
        "--use-pep517",
        "--no-user",
    )
    if not uv.exists() or _TOOLS in names:
        tools = run(*pip, "--retries=1", "--timeout=10", "-r", _TOOLS)
        if _TOOLS in names:
            require_success(tools, "uv cannot be installed")
    for name in filter(lambda name: name != _TOOLS, names):
        print(f"installing the packages of {name} into {place}/", flush=True)
        said = ""
        if uv.exists():
            # The tests import a small part of what they have, and are not compiled as a whole.
            compiled = [] if "test" in name else ["--compile-bytecode"]
            by_uv = run(
                uv, "pip", "install", "--quiet", f"--python={python}", "--require-hashes", *compiled, "-r", name
            )
            if by_uv.ok and not _missing(place, name):
                continue
            (place / "uv.log").write_text(by_uv.output, encoding="utf-8")
            said = by_uv.output
        by_pip = run(*pip, "-r", name)
        require_success(
            replace(by_pip, output=f"{said}\n{by_pip.output}"), f"the packages of {name} cannot be installed"
        )
        if missing := _missing(place, name):
            raise InstallError(
                f"pip has ended well, and {', '.join(missing)} of {name} are not in {place}/",
                remedy="find the setting that has it install elsewhere: `pip config debug`",
            )


def _missing(place: Path, requirements: str) -> list[str]:
    """Return the packages that a requirements file pins for every machine and that are not in the environment."""
    present = {_normal(path.name.partition("-")[0]) for path in site_packages(place).glob("*.dist-info")}
    pinned = pinned_requirements(Path(requirements)).items()
    names = [name.partition("[")[0] for name, line in pinned if ";" not in line]
    return [name for name in names if _normal(name) not in present]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
