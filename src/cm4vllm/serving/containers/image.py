"""The image that has vLLM: pulled where it is missing, known by its digest, and asked once what it has.

An image, an engine or a device that cannot be used is refused before anything is pulled, or asked.

What a container of the image reports, its versions and options, is kept in the user's cache under the digest: a tag
that has moved names another image.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from cm4vllm.common import input_types
from cm4vllm.common.errors import InstallError, UsageError, translated_os_errors
from cm4vllm.common.files import sha256_of, typed_path, user_cache
from cm4vllm.common.programs.containers import (
    SHM_SIZE,
    Engine,
    ask_engine,
    engine_for,
    engine_version,
    missing_hook,
    require_ready,
)
from cm4vllm.common.programs.processes import run
from cm4vllm.common.progress import say, step
from cm4vllm.common.records import Record, read_record, write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.records.server import ContainerRecord
from cm4vllm.serving.containers.server_container import container_options, removal_words, supervised_words
from cm4vllm.serving.installation.install import PACKAGES, PROOF, PROOF_ENV, InstallSettings, check, proof_result
from cm4vllm.serving.installation.vllm_choice import VENDORS, Choice, detected
from cm4vllm.serving.supervision.logs import telling_lines
from cm4vllm.serving.supervision.own_supervisors import end_supervisors, own
from cm4vllm.serving.supervisor import start_supervised

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
        return next((device for device, vendor in VENDORS.items() if vendor.name in makers), detected(self.choice)[0])


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
            image = _asked(container, settings.python, device, aside)
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


def _asked(container: ContainerRecord, python: str, device: str, folder: Path) -> VllmImage:
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
    return _reported(container, python, device, folder)


def _reported(container: ContainerRecord, python: str, device: str, folder: Path) -> VllmImage:
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
