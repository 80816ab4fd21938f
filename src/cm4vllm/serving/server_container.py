"""The container of a server: what it gets of this machine, its command, its end; and the image that has vLLM.

The server has the address and the paths that it has without a container: the network is this machine's, and the model
is mounted, read-only, where it is. Each container has a label with its supervisor, a name of its own, and as its first
process in_container/first_process.py, which ends it with the supervisor. One that an engine has not removed is found
by its label.

An image is pulled where it is missing, known by its digest, and asked once what it has. An image, an engine or a device
that cannot be used is refused before. What a container of the image reports, its versions and options, is kept in the
user's cache under the digest: a tag that has moved names another image.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from cm4vllm.assets.model_links import model_links
from cm4vllm.common import input_types
from cm4vllm.common.errors import InstallError, UsageError, translated_os_errors
from cm4vllm.common.files import sha256_of, typed_path, user_cache
from cm4vllm.common.programs.containers import (
    SHM_SIZE,
    Engine,
    Mount,
    ask_engine,
    engine_for,
    engine_version,
    engines,
    missing_hook,
    require_ready,
    run_words,
)
from cm4vllm.common.programs.processes import run
from cm4vllm.common.progress import say, step, warn
from cm4vllm.common.records import Record, read_record, write_record
from cm4vllm.common.secrets.command_lines import given_words, options_in, refuse_secrets
from cm4vllm.common.settings import Key, Settings
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.hardware.gpus.gpu import VISIBLE, detect_gpus
from cm4vllm.records.published_server import described_container
from cm4vllm.records.server import ContainerRecord
from cm4vllm.serving.carried_variables import carried_variables
from cm4vllm.serving.installation.install import PROOF, PROOF_ENV, InstallSettings, check, proof_result
from cm4vllm.serving.installation.packages import PACKAGES
from cm4vllm.serving.installation.vllm_choice import VENDORS, Choice, detected_build
from cm4vllm.serving.options.arguments import ServerSettings, hub_folder, secret_env, server_env
from cm4vllm.serving.supervision.logs import telling_lines
from cm4vllm.serving.supervision.own_supervisors import end_supervisors, own, supervisor_spec
from cm4vllm.serving.supervisor import WATCHED_PIPE, start_supervised

#: The label of every container: the namespace of process IDs and in it the supervisor.
_LABEL = "cm4vllm.supervisor"
_PROGRAM, _WATCHED = "/cm4vllm", "/cm4vllm-watched"
#: Options of an engine on which the server's address and its end rest; those of a pod are podman's.
_OURS = frozenset(
    {
        *("--detach", "-d", "--name", "--entrypoint", "--rm", "--restart", "--pid", "--pod", "--pod-id-file"),
        *("--network", "--net", "--publish", "-p", "--publish-all", "-P"),
    }
)
#: The short options that take no value (docker-run(1), podman-run(1)).
_WITHOUT_VALUE = "diPqt"


def container_options(text: str) -> list[str]:
    """Return the words of --container_args. Raises UsageError for a secret, and for what cannot be changed."""
    words = given_words("--container_args", text)
    refuse_secrets(
        "--container_args",
        words,
        cause="every user of the machine can read the command line of the container",
        remedy='set it as a variable of the environment, and give its name alone: --container_args="--env NAME"',
    )
    for word in words:
        named = [name for name in options_in(word, _WITHOUT_VALUE) if name in _OURS]
        if name := named[0] if named else _LABEL if _LABEL in word else "":
            raise UsageError(
                f"{name} cannot be given in --container_args",
                cause="the address and the end of the server rest on cm4vllm's own value",
                remedy="leave it out; --host and --port choose the address",
            )
    return words


def server_container(image: ContainerRecord, settings: ServerSettings) -> ContainerRecord:
    """Return the container of a server of an image: with the folders and variables that it gets of this machine."""
    environment = {**carried_variables(os.environ), **secret_env(settings), **server_env(settings)}
    passed = {*environment, *(set(VISIBLE) & set(os.environ))} - {"PYTHONPATH", "VLLM_RPC_BASE_PATH"}
    return msgspec.structs.replace(image, mounts=_mounts(settings), passed=sorted(passed))


def supervised_words(record: ContainerRecord, argv: Sequence[str]) -> list[str]:
    """Return the command for a supervisor, which fills in the braces."""
    described = described_container(
        record, (argv[0], f"{_PROGRAM}/first_process.py", f"{_WATCHED}/{WATCHED_PIPE}", *argv)
    )
    own = (Mount(str(Path(__file__).with_name("in_container")), _PROGRAM), Mount("{watched}", _WATCHED))
    container = replace(
        described,
        name="{container}",
        label=f"{_LABEL}={_pid_namespace()}.{{supervisor}}",
        local_image=True,
        mounts=(*described.mounts, *own),
    )
    return run_words(engines()[record.engine], container)


def removal_words(record: ContainerRecord) -> list[str]:
    """Return the command that removes the container, for a supervisor; none where the engine has no such command."""
    engine = engines()[record.engine]
    return [engine.name, *engine.removal, "{container}"] if engine.removal else []


def remove_leftovers(engine_name: str) -> list[str]:
    """Remove the containers whose supervisor is gone, and return their names.

    They have ended with the supervisor; an engine that was killed too has not removed them.
    """
    engine = engines()[engine_name]
    if not (engine.listing and engine.details and engine.removal):
        return []
    listed = ask_engine(engine, *(word.format(_LABEL) for word in engine.listing))
    names = listed.output.split() if listed.ok else []
    described = ask_engine(engine, *engine.details, *names) if names else None
    try:
        containers: list[dict[str, Any]] = json.loads(described.output) if described and described.ok else []
    except ValueError:
        return []
    left = [str(container.get("Name", "")).lstrip("/") for container in containers if _is_left(container)]
    return [name for name in left if ask_engine(engine, *engine.removal, name).ok]


def _is_left(container: dict[str, Any]) -> bool:
    """Return True if no supervisor owns a container; one of another namespace of process IDs is not seen here."""
    label = str(((container.get("Config") or {}).get("Labels") or {}).get(_LABEL, ""))
    namespace, _, supervisor = label.partition(".")
    number = whole_number(supervisor)
    return namespace == _pid_namespace() and number is not None and supervisor_spec(number) is None


def _pid_namespace() -> str:
    """Return the number of this process's namespace of process IDs."""
    return re.sub("[^0-9]", "", str(Path("/proc/self/ns/pid").readlink()))


def _mounts(settings: ServerSettings) -> list[str]:
    """Return the model's folder and the files that its links lead to; for a model of the hub, the hub's folder."""
    model = Path(settings.model)
    if not model.is_dir():
        return [str(hub_folder())]
    linked = model_links(model)
    if linked.others:
        warn(f"links in {model} lead to what no model needs, which the container does not get: {linked.in_words}")
    return [f"{place}:ro" for place in dict.fromkeys((model, model.resolve(), *linked.needed))]


IMAGE_FILE = "image.json"
_LOG = "proof.log"
#: vLLM is imported and generates a token: 40 s on two busy cores; a large image is read from the disk first.
_PROOF_S = 900.0


class ImageSettings(Settings, frozen=True, kw_only=True):
    """The image, the engine that runs it, the user's words for the engine, the Python in the image, and the device."""

    image: input_types.ContainerImage = ""
    engine: Annotated[Literal["auto", "podman", "docker", "apptainer"], Key("CM_VLLM_CONTAINER_ENGINE")] = "auto"
    options: Annotated[str, Key("CM_VLLM_CONTAINER_ARGS")] = ""
    python: Annotated[str, Key("CM_VLLM_CONTAINER_PYTHON")] = "python3"
    device: input_types.Device = ""
    choice: Choice = Choice()

    @property
    def asked_device(self) -> str:
        """The device that the image is to compute on: as asked for, else as detected."""
        if self.choice.variant and self.choice.variant != "system":
            return self.choice.variant
        if self.device:
            return self.device
        makers = {gpu.vendor for gpu in detect_gpus()}
        return next(
            (device for device, vendor in VENDORS.items() if vendor.name in makers), detected_build(self.choice)[0]
        )


class VllmImage(Record, frozen=True, kw_only=True):
    """The vLLM of an image: the container that asks it, the Python that has it, its device and its versions."""

    container: ContainerRecord
    python: str
    device: str
    packages: dict[str, str]


class ImageExports(Settings, frozen=True, kw_only=True):
    """The exports of get,vllm-image."""

    device: input_types.VllmDevice
    record: input_types.ImageRecordPath
    installation: input_types.VllmInstallation
    python: input_types.VllmPython
    version: Annotated[str, Key("CM_VLLM_VERSION")]


def require_container(settings: ImageSettings) -> None:
    """Refuse an image that cannot be run here, and flags without one.

    Raises InstallError for an engine or a hook that is missing and a daemon that does not respond, UsageError.
    """
    if not settings.image:
        given = {"container_args": settings.options, "container_engine": settings.engine.removeprefix("auto")}
        for flag in (flag for flag, value in given.items() if value):
            raise UsageError(f"--{flag} needs --container", remedy=f"add --container=IMAGE, or leave --{flag} out")
        return
    if settings.image.startswith("-"):
        raise UsageError(f"--container={settings.image} is not the name of an image")
    container_options(settings.options)
    engine, device = engine_for(settings.engine), settings.asked_device
    require_ready(engine)
    if (hook := missing_hook(engine, device)) is not None:
        raise InstallError(
            f"{engine.name} gives a container no {VENDORS[device].name} GPU on this machine",
            cause=f"found neither {' nor '.join([*hook.files, *hook.programs])}"
            + (f" with {hook.text}" if hook.text else ""),
            remedy=hook.remedy,
        )


def provide_image(settings: ImageSettings) -> ImageExports:
    """Return the exports of the recipe for the vLLM of an image. Raises what `vllm_image` raises."""
    path, image = vllm_image(settings, settings.asked_device)
    return ImageExports(
        device=image.device,
        record=str(path),
        installation=str(path),
        python=image.python,
        version=image.packages.get("vllm", ""),
    )


def vllm_image(settings: ImageSettings, device: str) -> tuple[Path, VllmImage]:
    """Return the vLLM of an image on a device, and the path of its record; the image is pulled where it is missing.

    Raises InstallError without the engine or the image, and where its vLLM generates no token; UsageError.
    """
    engine = engine_for(settings.engine)
    require_ready(engine)
    container = container_of(engine, settings, device)
    if not container.digest:
        _pull(engine, settings.image)
        container = container_of(engine, settings, device)
    key = hashlib.sha256(msgspec.json.encode([container, settings.python])).hexdigest()[:16]
    folder = user_cache("images") / key
    if not (folder / IMAGE_FILE).exists():
        aside = folder.with_name(f"{key}.{os.getpid()}")
        with translated_os_errors("make", aside, "XDG_CACHE_HOME"):
            aside.mkdir(parents=True, exist_ok=True)
        with step(f"proof: one token generated by the vLLM of {settings.image}"):
            image = _try_image(container, settings.python, device, aside)
        write_record(aside / IMAGE_FILE, image)
        with contextlib.suppress(OSError):  # another process has asked the same image meanwhile
            aside.rename(folder)
    image = read_record(folder / IMAGE_FILE, VllmImage)
    say(f"vLLM {image.packages.get('vllm', '')} of {image.container.words}")
    return folder / IMAGE_FILE, image


def known_image(engine: Engine, image: str) -> tuple[str, str]:
    """Return the digest of an image on this machine, and the reference that names exactly it; empty if it is missing.

    A registry's digest counts where the image has one, else its own, which is that of its configuration.
    """
    if not engine.inspect:
        path = typed_path(image).absolute()
        return (f"sha256:{sha256_of(path)}", str(path)) if path.is_file() else ("", "")
    done = ask_engine(engine, *engine.inspect, image)
    try:
        described: dict[str, Any] = json.loads(done.output)[0] if done.ok else {}
    except (ValueError, IndexError):
        described = {}
    # One that was made here has no registry; an image may have names of several.
    references = [digest for digest in described.get("RepoDigests") or () if not digest.startswith("localhost/")]
    if references:
        repository = re.sub(r"(@.*|:[^/]*)$", "", image)
        reference = next(
            (digest for digest in references if digest.partition("@")[0].endswith(repository)), references[0]
        )
        return reference.rpartition("@")[2], reference
    own = str(described.get("Id") or "").removeprefix("sha256:")
    return (f"sha256:{own}", f"sha256:{own}") if own else ("", "")


def container_of(engine: Engine, settings: ImageSettings, device: str) -> ContainerRecord:
    """Return the container that an engine runs of an image; its digest is empty where the image is not here."""
    digest, reference = known_image(engine, settings.image)
    return ContainerRecord(
        engine=engine.name,
        engine_version=engine_version(engine),
        image=settings.image,
        digest=digest,
        reference=reference or settings.image,
        device=device,
        shm_size=SHM_SIZE,
        options=container_options(settings.options),
    )


def _pull(engine: Engine, image: str) -> None:
    if not engine.pull:
        raise InstallError(
            f"the image {image} was not found", remedy=f"give --container the path of a file that {engine.name} runs"
        )
    with step(f"pulling {image} with {engine.name}"):
        done = run([engine.name, *engine.pull, image])
    if not done.ok:
        raise InstallError(
            f"{engine.name} cannot pull {image}",
            cause=done.tail(4),
            remedy="give the whole name, as docker.io/vllm/vllm-openai:TAG; where the registry asks for a login: "
            f"{engine.name} login REGISTRY; without a network, load the image from a file: {engine.name} load -i FILE",
        )


def _try_image(container: ContainerRecord, python: str, device: str, folder: Path) -> VllmImage:
    """Have a container generate a token, and return what it reports; the help of `vllm serve` goes to the folder."""
    asked = msgspec.structs.replace(container, mounts=[f"{PROOF}:ro"], passed=sorted(PROOF_ENV))
    supervisor = start_supervised(
        supervised_words(asked, [python, "-P", str(PROOF), *PACKAGES]),
        PROOF_ENV,
        spec=folder / "supervisor-spec.json",
        log=folder / _LOG,
        state=folder / "supervisor.json",
        grace_s=1,
        last=removal_words(asked),
    )
    own(supervisor)
    try:
        supervisor.wait(_PROOF_S)
    except subprocess.TimeoutExpired as error:
        raise InstallError(
            f"the vLLM of {container.image} has not generated a token within {_PROOF_S:g} s",
            cause=telling_lines(folder / _LOG),
            remedy=f"the whole log: {folder / _LOG}",
        ) from error
    finally:
        end_supervisors([supervisor.pid])
    return _reported_image(container, python, device, folder)


def _reported_image(container: ContainerRecord, python: str, device: str, folder: Path) -> VllmImage:
    """Return what the log of a proof says."""
    log = folder / _LOG
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    hint = "; --container_python names another Python of the image"
    proved, packages = proof_result(text, log, f"the vLLM of {container.image}", hint)
    if proved != device:
        raise InstallError(
            f"the vLLM of {container.image} computes on {proved}, not on {device}",
            remedy=f"give an image for {device}, or --device={proved}",
        )
    check(InstallSettings(variant="system", version=packages.get("vllm", "")))
    return VllmImage(container=container, python=python, device=device, packages=packages)
