"""The image, the engine and the device that are asked for: refused before anything is pulled, or asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cm4vllm.common.containers import engine_for, missing_hook, require_ready
from cm4vllm.common.errors import InstallError, UsageError
from cm4vllm.common.settings import read_settings
from cm4vllm.hardware.gpu import detect_gpus
from cm4vllm.serving.containers.image import ImageSettings, vllm_image
from cm4vllm.serving.containers.server_container import container_options
from cm4vllm.serving.vllm_choice import VENDORS, Choice, detected

__all__ = ["asked_device", "image_env", "require_container"]

_SYSTEM = "system"


def require_container(env: Mapping[str, Any]) -> None:
    """Refuse an image that cannot be run here, and flags without one.

    Raises InstallError for an engine or a hook that is missing and a daemon that does not respond, UsageError.
    """
    settings = read_settings(ImageSettings, env)
    if not settings.image:
        given = {"container_args": settings.options, "container_engine": settings.engine.removeprefix("auto")}
        for flag in (flag for flag, value in given.items() if value):
            raise UsageError(f"--{flag} needs --container", remedy=f"add --container=IMAGE, or leave --{flag} out")
        return
    if settings.image.startswith("-"):
        raise UsageError(f"--container={settings.image} is not the name of an image")
    container_options(settings.options)
    engine, device = engine_for(settings.engine), asked_device(env)
    require_ready(engine)
    if (hook := missing_hook(engine, device)) is not None:
        raise InstallError(
            f"{engine.name} gives a container no {VENDORS[device]} GPU on this machine",
            cause=f"found neither {' nor '.join([*hook.files, *hook.programs])}"
            + (f" with {hook.text}" if hook.text else ""),
            remedy=hook.remedy,
        )


def asked_device(env: Mapping[str, Any]) -> str:
    """Return what the image is to compute on: as asked for, else as detected."""
    choice = read_settings(Choice, env)
    if choice.variant and choice.variant != _SYSTEM:
        return choice.variant
    if env.get("CM_MLPERF_DEVICE"):
        return str(env["CM_MLPERF_DEVICE"])
    vendors = {gpu.vendor for gpu in detect_gpus()}
    return next((device for device, vendor in VENDORS.items() if vendor in vendors), detected(choice)[0])


def image_env(env: Mapping[str, Any]) -> dict[str, str]:
    """Return what the recipe exports of the vLLM of an image. Raises what `vllm_image` raises."""
    path, image = vllm_image(read_settings(ImageSettings, env), asked_device(env))
    return {
        "CM_VLLM_DEVICE": image.device,
        "CM_VLLM_IMAGE_RECORD": str(path),
        "CM_VLLM_INSTALLATION": str(path),
        "CM_VLLM_PYTHON_BIN_WITH_PATH": image.python,
        "CM_VLLM_VERSION": image.packages.get("vllm", ""),
    }
