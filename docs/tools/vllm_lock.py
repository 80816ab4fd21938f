"""The file that pins the packages of a build of vLLM with their hashes, written by uv.

    python docs/tools/vllm_lock.py cuda

writes script/install-vllm/requirements-cuda.txt for the default release of the build, its versions of Python and its
machines (serving/installation/builds.yaml). A package that the CPU build has, too, is pinned at the same version where
the release allows it: that set has served the tests. For `rocm` it needs a machine that reaches the build's own index;
then `lock: requirements-rocm.txt` in builds.yaml has that file used.
"""

import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from packaging.markers import Marker

from cm4vllm.common.programs.environments import pinned_requirements
from cm4vllm.serving.installation.builds import VARIANTS, Variant, numbers_of

LOCKS = Path(__file__).resolve().parents[2] / "script" / "install-vllm"
#: torch imports setuptools, which Python's venv brings no longer; vLLM allows no newer one.
_MORE = "setuptools<81"


def written(build: Variant) -> str:
    """Return the text of the file. Raises subprocess.CalledProcessError with what uv printed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pyproject.toml").write_text(_project(build, _versions(build, folder)), encoding="utf-8")
        _uv(folder, "lock")
        exported = _uv(folder, "export", "--no-emit-project", "--no-annotate", "--no-header")
    lines = [_exact(_without_marker(line, build)) for line in exported.splitlines()]
    return "\n".join([*_header(build), *lines, ""])


def _requirements(build: Variant) -> list[str]:
    return [f"{build.distribution}=={build.release}", _MORE]


def _versions(build: Variant, folder: Path) -> list[str]:
    """Return the packages of a release with their versions: those of the CPU build where the release allows it."""
    target = folder / "versions.txt"
    target.write_text((LOCKS / VARIANTS["cpu"].lock).read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "wanted.in").write_text("\n".join(_requirements(build)), encoding="utf-8")
    indexes = [f"--index={build.index}", "--index-strategy=unsafe-best-match"] if build.index else []
    least = f"--python-version={_pythons(build)[0]}"
    _uv(
        folder,
        "pip",
        "compile",
        "--universal",
        least,
        "--no-annotate",
        "--no-header",
        *indexes,
        "wanted.in",
        "-o",
        target,
    )
    return [line for line in target.read_text(encoding="utf-8").splitlines() if "==" in line]


def _pythons(build: Variant) -> list[str]:
    return sorted(build.pythons, key=numbers_of)


def _project(build: Variant, versions: list[str]) -> str:
    """Return the project whose dependencies uv locks."""
    least, newest = _pythons(build)[0], numbers_of(_pythons(build)[-1])
    machines = [
        f"sys_platform == 'linux' and platform_machine == '{machine}' and implementation_name == 'cpython'"
        for machine in build.machines
    ]
    index = f'\nindex-strategy = "unsafe-best-match"\nindex = [{{url = "{build.index}"}}]' if build.index else ""
    return (
        f'[project]\nname = "lock-of-vllm"\nversion = "0"\n'
        f'requires-python = ">={least},<{newest[0]}.{newest[1] + 1}"\n'
        f"dependencies = {_requirements(build)}\n[tool.uv]\nenvironments = {machines}\n"
        f"constraint-dependencies = {versions}{index}\n"
    )


def _uv(folder: Path, *words: str | Path) -> str:
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run([uv, *words], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _without_marker(line: str, build: Variant) -> str:
    """Return a line without a marker that holds wherever the build is installed."""
    match = re.fullmatch(r"(?P<pin>[^;]+) ; (?P<marker>.+?)(?P<rest> \\)?", line)
    if match is None:
        return line
    marker = Marker(match["marker"])
    places = [
        {"python_full_version": f"{python}.0", "python_version": python, "platform_machine": machine}
        | {"sys_platform": "linux", "implementation_name": "cpython", "platform_python_implementation": "CPython"}
        for python, machine in product(build.pythons, build.machines)
    ]
    held = [marker.evaluate(place) for place in places]
    return f"{match['pin']}{match['rest'] or ''}" if all(held) else line


def _exact(line: str) -> str:
    """Return a line that takes no build of PyTorch for another device, as 2.13.0+cpu is for 2.13.0: uv would try it."""
    return re.sub(r"^(torch|torchaudio|torchcodec|torchvision)==(?!=)", r"\1===", line)


def _header(build: Variant) -> list[str]:
    return [
        f"# vLLM {build.release}'s {build.title} build and all it needs, with the hashes of their wheels for Linux on",
        f"# {' and '.join(build.machines)}, Python {', '.join(_pythons(build))}. Installed without resolving.",
        f"# Written by docs/tools/vllm_lock.py {build.name}.",
    ]


if __name__ == "__main__":
    chosen = VARIANTS[sys.argv[1]]
    path = LOCKS / f"requirements-{chosen.name}.txt"
    path.write_text(written(chosen), encoding="utf-8")
    print(f"{path.name}: {len(pinned_requirements(path))} packages")
