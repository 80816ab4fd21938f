"""Choice of the vLLM: for the detected accelerator, or one that is installed already."""

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from cm4vllm.common import input_types
from cm4vllm.common.errors import InstallError, UsageError
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.hardware.gpus.gpu import detect_gpus, given_gpus, hidden_by, vendors
from cm4vllm.records.machine import GpuFacts
from cm4vllm.serving.installation.builds import VARIANTS, WantedBuild, known_release, require_driver, require_published
from cm4vllm.serving.installation.install import PROVED_BY, VllmRecord, require_proof
from cm4vllm.serving.installation.kernels import MISSING
from cm4vllm.serving.installation.packages import packages_of

#: The makers of the GPUs that a build is for.
VENDORS = {vendor.device: vendor for vendor in vendors()}
#: The builds of vLLM among which get,vllm chooses.
DEVICES = ("cpu", *VENDORS)


class Choice(Settings, frozen=True, kw_only=True):
    """The request, and the detected hardware. `variant` and `version` are empty if nothing was requested.

    `machine` names another machine, which a plan is for.
    """

    variant: input_types.VllmVariant = ""
    version: input_types.VllmVersion = ""
    proved_by: Annotated[Literal["", "server"], Key(PROVED_BY)] = ""
    vendor: Annotated[str, Key("CM_HOST_GPU_VENDOR")] = ""
    system_python: input_types.SystemPython = ""
    machine: input_types.Machine = ""


def require_device(device: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError unless this machine has the device that vLLM is to compute on, with what is missing."""
    if device == "cpu":
        return
    if gpus := gpus_for(device):
        missing = "" if given_gpus(gpus, env) else f"{hidden_by(gpus, env)} hides every GPU"
    else:
        missing = VENDORS[device].why_none()
    if missing:
        raise UsageError(
            f"--device={device}: no {VENDORS[device].name} GPU that vLLM can use was found on this machine",
            cause=missing,
            remedy="leave --device, or the tag of that build, out to have the device detected; or give --device=cpu; "
            f"get,vllm,_{device} by itself installs that build, for a machine that has one",
        )


def require_build(wanted: WantedBuild, device: str, driver: str | None = None) -> None:
    """Refuse a release that the build for a device does not have, or that needs a newer driver.

    Device and driver are those of this machine where the one is empty and the other None. What the user's own wheel or
    index has is not known. Raises InstallError.
    """
    if wanted.from_elsewhere or wanted.variant == "system":
        return
    build = device or detected_build(Choice())[0]
    require_published(build, wanted.version)
    if driver is None:
        driver = next((gpu.driver for gpu in gpus_for(build)), "")
    require_driver(build, driver, wanted.version)


def build_notes(wanted: WantedBuild, device: str) -> tuple[str, ...]:
    """Return the note of a plan on the driver that the chosen release needs, and on what was seen of it; or none.

    The device is detected where it is empty. Of a release that is not listed its driver alone is known.
    """
    build = device or detected_build(Choice())[0]
    release = None if wanted.from_elsewhere else known_release(build, wanted.version)
    if release is None or not release.needs:
        return ()
    version = wanted.version or release.release
    seen = f"; {release.seen}" if version == release.release else ""
    return (f"vLLM {version}, {VARIANTS[build].title} build: {release.needs}{seen}",)


def gpus_for(device: str) -> list[GpuFacts]:
    """Return this machine's GPUs that a build of vLLM computes on, none for the CPU backend."""
    vendor = VENDORS.get(device)
    return [gpu for gpu in detect_gpus() if vendor and gpu.vendor == vendor.name]


def choose(choice: Choice) -> dict[str, str]:
    """Return the keys that the recipe sets: none for a build that was asked for by its name. Raises InstallError."""
    if choice.variant == "system":
        python, version = system_vllm(choice.system_python)
        return {"CM_VLLM_CHOSEN_VARIANT": "system", "CM_VLLM_SYSTEM_PYTHON": python, "CM_VLLM_SYSTEM_VERSION": version}
    if choice.variant:
        return {}
    variant = detected_build(choice)[0]
    # The release that this build has anyway is not installed once more under its name.
    same = choice.version == VARIANTS[variant].release
    return {"CM_VLLM_CHOSEN_VARIANT": variant, **({"CM_VLLM_WANTED_VERSION": ""} if same else {})}


def require_chosen(choice: Choice) -> None:
    """Refuse a build for GPUs that a server was asked for on a machine without such a GPU, as --device is refused.

    Where no server is started, it may be for another machine. Raises UsageError.
    """
    if choice.variant in VENDORS and choice.proved_by == "server" and not choice.machine:
        require_device(choice.variant)


def print_choice(choice: Choice) -> None:
    """Print which build was chosen where none was requested, and why."""
    if not choice.variant:
        variant, why = detected_build(choice)
        say(f"vLLM for {variant}: {why}")


def detected_build(choice: Choice) -> tuple[str, str]:
    """Return the build for what was detected, and the reason in words."""
    seen = [vendor for vendor in VENDORS.values() if vendor.name == choice.vendor]
    for vendor in seen or (vendor for vendor in VENDORS.values() if vendor.is_loaded()):
        why = f"a GPU of {vendor.name} was detected" if seen else f"the driver of {vendor.name} is loaded"
        return vendor.device, why
    return "cpu", "no GPU was detected"


def system_vllm(given: str = "") -> tuple[str, str]:
    """Return the Python that has a vLLM, and its version: `given`, that of the `vllm` command, or the running one.

    Raises InstallError where none has a vLLM.
    """
    asked = [given] if given else [*_python_of_command(), sys.executable]
    for python in asked:
        with suppress(OSError):  # there is no such Python
            if version := packages_of(Path(python), {"PYTHONPATH": ""}).get("vllm", ""):
                return python, version
    raise InstallError(
        "no vLLM is installed",
        cause=f"searched: {', '.join(asked)}",
        remedy="name the Python that has one: --vllm_python=/path/to/bin/python; or leave _system out",
    )


def prove_here(installation: Path) -> None:
    """Prove the installation whose record is at this path, where it is not proved and this machine has its device.

    Else the first server on a machine that has it is the proof. Raises EnvironmentBroken.
    """
    note_kernels(installation)
    record = read_record(installation, VllmRecord)
    if record.device in VENDORS and not gpus_for(record.device):
        say(f"vLLM for {record.device} is installed and imported; the first server on a GPU is its proof")
        return
    require_proof(installation)


def note_kernels(installation: Path) -> None:
    """Print what the installation whose record is at this path lacks; nothing where there is none yet."""
    if installation.is_file() and read_record(installation, VllmRecord).kernels == MISSING:
        say(f"note: {MISSING}")


def _python_of_command() -> list[str]:
    """Return the interpreter in the first line of the `vllm` command."""
    with Path(shutil.which("vllm") or os.devnull).open("rb") as file:
        first = file.readline().decode(errors="replace").strip()
    return [first.removeprefix("#!")] if first.startswith("#!/") else []
