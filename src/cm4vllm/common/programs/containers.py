"""One description of a container, and the command by which an engine runs it.

The engines are data (container_engines.yaml). Variables of `passed` go in by name alone, so that no value of this
environment stands on a command line.
"""

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec
import yaml

from cm4vllm.common.errors import InstallError
from cm4vllm.common.kernel_files import exists, matching
from cm4vllm.common.programs.processes import Completed, run
from cm4vllm.common.records import Record

#: vLLM's processes talk through /dev/shm, of which a container has 64 MB by default. Memory is taken as it is used.
SHM_SIZE = "16g"
_ANSWER_S = 30.0


class Hook(Record, frozen=True, kw_only=True):
    """A device's requirement in a container: a file of `files` with `text` in it, or a program of `programs`."""

    files: list[str] = []
    text: str = ""
    programs: list[str] = []
    remedy: str


class Engine(Record, frozen=True, kw_only=True):
    """A program that runs containers: the words of its commands and options, none for what it does not have.

    `tried` says with what it was run; empty where it never was.
    """

    name: str = ""
    tried: str
    start: list[str]
    devices: dict[str, list[str]]
    mount: list[str]
    writable_mount: list[str]
    selinux: list[str] = []
    container_name: list[str] = []
    label: list[str] = []
    host_network: list[str] = []
    port: list[str] = []
    shm_size: list[str] = []
    passed: list[str] = []
    group: list[str] = []
    entrypoint: list[str] = []
    local_image: list[str] = []
    pull: list[str] = []
    inspect: list[str] = []
    listing: list[str] = []
    details: list[str] = []
    removal: list[str] = []
    ready: list[str] = []
    hooks: dict[str, Hook] = {}
    device_files: dict[str, list[str]] = {}


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of this machine in a container, read-only, at the same path where `target` is empty."""

    source: str
    target: str = ""
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container of `image`, and what it gets of this machine.

    `program` takes the place of the image's own where it is not empty. `device` is what it computes on: cuda, rocm,
    cpu, or nothing in particular. `passed` names variables of the environment, `ports` are as the engine takes them,
    `options` are further words for the engine's command.
    """

    image: str
    program: tuple[str, ...] = ()
    name: str = ""
    label: str = ""
    device: str = ""
    shm_size: str = ""
    host_network: bool = False
    local_image: bool = False
    ports: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    passed: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@cache
def engines() -> Mapping[str, Engine]:
    """Return the engines by name, in the order in which they are searched for."""
    text = resources.files("cm4vllm.common.programs").joinpath("container_engines.yaml").read_text(encoding="utf-8")
    return {name: msgspec.convert({**entry, "name": name}, Engine) for name, entry in yaml.safe_load(text).items()}


def installed_engines() -> list[Engine]:
    """Return the engines whose programs are on PATH."""
    return [engine for engine in engines().values() if shutil.which(engine.name)]


def engine_for(name: str) -> Engine:
    """Return the engine `name`, with auto the first that is installed. Raises InstallError where it is not."""
    known = engines()
    wanted = list(known.values()) if name in ("", "auto") else [known[name]]
    chosen = next((engine for engine in wanted if shutil.which(engine.name)), None)
    if chosen is None:
        raise InstallError(
            f"no engine for containers: {', '.join(engine.name for engine in wanted)} not found on PATH",
            remedy="install podman or docker; or leave --container out: vLLM is then installed into an environment",
        )
    return chosen


def ask_engine(engine: Engine, *words: str) -> Completed:
    """Return what a short command of an engine printed; a status of 124 where it did not answer in time."""
    argv = [engine.name, *words]
    try:
        return run(argv, timeout_s=_ANSWER_S)
    except subprocess.TimeoutExpired:
        return Completed(tuple(argv), 124, f"no answer within {_ANSWER_S:g} s")
    except OSError as error:
        return Completed(tuple(argv), 127, error.strerror or str(error))


def engine_version(engine: Engine) -> str:
    """Return the version that an engine reports; empty where it reports none."""
    done = ask_engine(engine, "--version")
    words = [word.strip(",") for word in done.output.split()] if done.ok else []
    return next((word for word in words if word[:1].isdecimal()), "")


def require_ready(engine: Engine, remedy: str = "") -> None:
    """Raise InstallError for an engine whose daemon does not respond."""
    if not engine.ready:
        return
    answer = ask_engine(engine, *engine.ready)
    if not answer.ok:
        raise InstallError(
            f"`{engine.name}` is installed, but its daemon does not respond",
            cause=answer.tail(2),
            remedy="; ".join(filter(None, ("start the daemon", remedy))),
        )


def missing_hook(engine: Engine, device: str, root: Path = Path("/")) -> Hook | None:
    """Return the requirement of a device that this machine does not meet; None where nothing is missing."""
    hook = engine.hooks.get(device)
    if hook is None or any(map(shutil.which, hook.programs)):
        return None
    for path in (path for pattern in hook.files for path in matching(root, pattern.lstrip("/"))):
        try:
            if hook.text in path.read_text(encoding="utf-8", errors="replace"):
                return None
        except OSError:
            continue
    return hook


def run_words(engine: Engine, container: Container, root: Path = Path("/")) -> list[str]:
    """Return the command that runs a container; the device files whose groups it gets are those under `root`."""
    once = ("",)
    parts = (
        (engine.local_image, once if container.local_image else ()),
        (engine.container_name, _tuple_of(container.name)),
        (engine.label, _tuple_of(container.label)),
        (engine.host_network, once if container.host_network else ()),
        (engine.port, container.ports),
        (engine.shm_size, _tuple_of(container.shm_size) if _takes_shm_size(container) else ()),
        (engine.devices.get(container.device, []), once),
        (engine.group, _groups(root, engine.device_files.get(container.device, ()))),
    )
    words = [engine.name, *engine.start]
    words += [word.format(value) for template, values in parts for value in values for word in template]
    words += _mount_words(engine, container, root)
    words += [word.format(name) for name in container.passed for word in engine.passed]
    words += container.options
    program = container.program
    entrypoint = [word.format(program[0]) for word in engine.entrypoint] if program else []
    return [*words, *entrypoint, container.image, *(program[1:] if entrypoint else program)]


def _tuple_of(value: str) -> tuple[str, ...]:
    return (value,) if value else ()


def _takes_shm_size(container: Container) -> bool:
    """Return True if the size is ours to set: an engine refuses one beside the memory of this machine or another."""
    return {word.partition("=")[0] for word in container.options}.isdisjoint(("--ipc", "--shm-size"))


def _mount_words(engine: Engine, container: Container, root: Path) -> Iterator[str]:
    """Yield the engine's options for the mounts of a container."""
    if container.mounts and exists(root / "sys/fs/selinux/enforce"):
        yield from engine.selinux
    for mount in container.mounts:
        template = engine.writable_mount if mount.writable else engine.mount
        yield from (word.format(source=mount.source, target=mount.target or mount.source) for word in template)


def _groups(root: Path, patterns: Iterable[str]) -> list[str]:
    """Return the groups that own device files, but for root's."""
    groups = {path.stat().st_gid for pattern in patterns for path in matching(root, pattern)}
    return [str(group) for group in sorted(groups - {0})]
