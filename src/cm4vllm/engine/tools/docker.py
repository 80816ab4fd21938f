"""`cm dockerfile script` and `cm docker script`: a recipe in a container, with the engine inside."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import InstallError, RecipeError, RunFailed, UsageError, translated_os_errors
from cm4vllm.common.files import working_folder
from cm4vllm.common.folders.owned_folders import staged_folder, write_noted
from cm4vllm.common.git.git_objects import borrowed, run_git
from cm4vllm.common.host_addresses import PROXY_VARIABLES
from cm4vllm.common.programs.containers import Container, Mount, engines, require_ready, run_words
from cm4vllm.common.programs.processes import Completed, exit_in_words
from cm4vllm.common.progress import say
from cm4vllm.common.secrets.redaction import secret_flags, vault
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.meta_files import merge
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.format.variations import resolve
from cm4vllm.engine.run.flags import flag
from cm4vllm.engine.run.request import Request, select

#: Debian with a Python that is new enough; the systems that public metas name have older ones.
_BASE_IMAGE = "python:3.12-slim-bookworm"
_PACKAGES = ("bash", "build-essential", "ca-certificates", "git", "libnuma1")
_INSIDE = "/home/cm"
#: Docker refuses --gpus without a driver: `all_gpus: present` in a meta asks for the GPUs there are, possibly none.
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
#: The variables that are passed by name alone, so that no value stands in a file or on a command line.
_PASSED = ("HF_TOKEN", "CM_HF_TOKEN", "GH_TOKEN", "VLLM_API_KEY", "OPENAI_API_KEY", *PROXY_VARIABLES)
#: The files that do not belong into an image; applied where a repository is not a git checkout.
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".cm", "__pycache__", "mlperf-results", "*.pyc", "node_modules")
#: Flags that are about the container, not about the recipe.
_OWN = ("docker_folder", "docker_base_image", "docker_image", "no_run")


@dataclass(frozen=True, slots=True)
class RecipeImage:
    """A recipe's image: its base image, the command in it, and the container that runs from it."""

    script: ScriptMeta
    base_image: str
    command: tuple[str, ...]
    container: Container


def docker_script(automation: Any, i: dict[str, Any], *, run_it: bool) -> dict[str, Any]:
    """Write a folder with a Dockerfile for the recipe asked for; with `run_it` also build the image and run it."""
    checkout = Path(automation.path).parents[1]
    script = select(Catalogue(automation.cmind), Request.of(i, ""), str(checkout / "script"))
    made = image_of(script, i)
    folder = Path(working_folder(), str(i.get("docker_folder") or f"docker-{script.alias}"))
    write_context(made, folder, _repositories(automation.cmind, checkout, script))
    work = folder / "work"
    with translated_os_errors("make", work, "--docker_folder"):
        work.mkdir(exist_ok=True)
    build = ["docker", "build", "--build-arg", f"UID={os.getuid()}", "--tag", made.container.image, str(folder)]
    mounts = (Mount(str(work), f"{_INSIDE}/work", writable=True), *made.container.mounts)
    start = run_words(engines()["docker"], replace(made.container, mounts=mounts, passed=tuple(_passed_variables(i))))
    if i.get("out") == "con":
        print(f"{folder / 'Dockerfile'}\n\n{shlex.join(build)}\n{shlex.join(start)}")
    if run_it and not flag(i, "no_run"):
        _require_docker(folder)
        _attached(build, "build")
        _attached(start, "run")
    return {"return": 0, "dockerfile": str(folder / "Dockerfile"), "build": build, "run": start}


def image_of(script: ScriptMeta, i: Mapping[str, Any]) -> RecipeImage:
    """Return the image for a requested script; `docker` of its meta and variations is applied."""
    request = Request.of(i, "")
    described: dict[str, Any] = dict(script.layer.docker)
    for variation in resolve(script, request.variations, request.excluded_variations).layers:
        described = merge(described, dict(variation.layer.docker))
    words = [
        word
        for word in i.get("cmd") or [f"--tags={request.but(tags=request.tags or script.tags).title()}"]
        if word.lstrip("-").partition("=")[0] not in _OWN
    ]
    if typed := secret_flags(words, vault()):
        name = next(iter(typed.values()))
        raise UsageError(
            f"{', '.join(typed)} would store a secret in an image that others can read",
            remedy=f"set it as a variable of the environment, {name}=... cm dockerfile script ...; "
            f"the container gets {', '.join(_PASSED)}",
        )
    if "os" in described and "base_image" not in described:
        say(
            f"note: docker.os ({described['os']} {described.get('os_version', '')}) of the meta is not used: "
            f"the engine needs the Python of {_BASE_IMAGE}; --docker_base_image= names another image with apt-get"
        )
    return RecipeImage(
        script=script,
        base_image=str(i.get("docker_base_image") or described.get("base_image") or _BASE_IMAGE),
        command=("cm", "run", "cm4vllm:script", *words, "--quiet"),
        container=_container(str(i.get("docker_image") or f"cm-{script.alias}"), described),
    )


def _container(image: str, described: Mapping[str, Any]) -> Container:
    """Return the container that the key `docker` of a meta describes."""
    wanted = described.get("all_gpus")
    has_gpus = wanted in (True, "yes") or (wanted == "present" and _NVIDIA_DRIVER.exists())
    mounts = (f"--volume={mount}" for mount in described.get("mounts") or () if "${{" not in mount)
    return Container(
        image=image,
        device="cuda" if has_gpus else "",
        shm_size=str(described.get("shm_size") or ""),
        ports=tuple(map(str, described.get("port_maps") or ())),
        options=(*mounts, *shlex.split(str(described.get("extra_run_args") or ""))),
    )


def _passed_variables(i: Mapping[str, Any]) -> list[str]:
    """Return the variables that the container gets by name: those of _PASSED, and those that flags *_env name."""
    named = (str(value) for flag_name, value in i.items() if flag_name.endswith("_env"))
    return [name for name in (*_PASSED, *named) if os.environ.get(name)]


def _repositories(cmind: Any, checkout: Path, script: ScriptMeta) -> dict[str, Path]:
    """Return the repositories that go in: that of the engine first, then the script's, then those it may use."""
    known = {
        str(repo.meta.get("alias", "")): Path(repo.path)
        for repo in cmind.repos.lst
        if repo.meta.get("alias") not in ("local", "internal")
    }
    engine = next((alias for alias, path in known.items() if path.resolve() == checkout.resolve()), "cm4vllm")
    chosen = {engine: checkout}
    if script.repo in known:
        chosen.setdefault(script.repo, known[script.repo])
    return chosen


def write_context(image: RecipeImage, folder: Path, repositories: Mapping[str, Path]) -> None:
    """Write Dockerfile and the repositories' files to `folder`. What git ignores is left out."""
    with translated_os_errors("write", folder, "--docker_folder"), staged_folder(folder / "repos") as staging:
        for alias, path in repositories.items():
            _copy(path, staging / alias)
    write_noted(folder / "Dockerfile", dockerfile(image, list(repositories)))


def _copy(source: Path, target: Path) -> None:
    """Copy a repository: what git lists of it, or all of it where git does not know it."""
    listed = _listed_by_git(source) if (shutil.which("git") and (source / ".git").exists()) else None
    if listed is None or not listed.ok:
        try:
            shutil.copytree(source, target, ignore=_LEFT_OUT, symlinks=True)
        except shutil.Error as error:
            raise RecipeError(f"{source} cannot be copied", cause=str(error.args[0][0][2])) from error
        return
    for name in filter(None, listed.output.split("\0")):
        if (source / name).is_file():  # a file that is deleted but not committed is listed too
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def _listed_by_git(source: Path) -> Completed:
    with borrowed(source / ".git") as git:
        return run_git(["ls-files", "-z", "--cached", "--others", "--exclude-standard"], git, work_tree=source)


def dockerfile(image: RecipeImage, aliases: Sequence[str]) -> str:
    """Return the text of the Dockerfile; the first repository is the engine's."""
    engine, *others = aliases
    registered = " \\\n && ".join(f"cm add repo --path={_INSIDE}/repos/{alias}" for alias in [engine, *others])
    return f"""\
# {image.script.alias}, with the engine that runs it. Made by: cm dockerfile script
FROM {image.base_image}
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update \\
 && apt-get install --yes --no-install-recommends {" ".join(_PACKAGES)} \\
 && rm -rf /var/lib/apt/lists/*
# The owner of the files that a run leaves in the folder work, which is mounted.
ARG UID=1000
RUN useradd --non-unique --uid $UID --create-home --home-dir {_INSIDE} cm \\
 && install --directory --owner=cm {_INSIDE}/work
USER cm
WORKDIR {_INSIDE}/work
ENV CM_REPOS={_INSIDE}/CM PATH={_INSIDE}/venv/bin:$PATH
COPY --chown=cm repos/ {_INSIDE}/repos/
RUN python3 -m venv {_INSIDE}/venv \\
 && pip install --no-cache-dir -r {_INSIDE}/repos/{engine}/requirements.txt
RUN {registered}
ENTRYPOINT {json.dumps(list(image.command))}
"""


def _require_docker(folder: Path) -> None:
    written = f"the Dockerfile is in {folder}: build and run it on a machine with Docker, with the two commands above"
    if shutil.which("docker") is None:
        raise InstallError("`docker` not found on PATH", remedy=written)
    require_ready(engines()["docker"], written)


def _attached(argv: Sequence[str], command: str) -> None:
    """Run docker with this process's own terminal, and end it with this process."""
    say(f"docker {command}")
    status = subprocess.run(list(argv), check=False).returncode
    if status:
        raise RunFailed(
            f"docker {command} ended with {exit_in_words(status)}",
            cause=shlex.join(argv),
            remedy="its output above shows the reason",
        )
