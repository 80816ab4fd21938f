"""Notes of a plan on a container: what is pulled, and the command that will run it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cm4vllm.common.containers import SHM_SIZE, engine_for, engine_version
from cm4vllm.common.settings import read_settings
from cm4vllm.serving.arguments import server_argv
from cm4vllm.serving.containers.choice import asked_device
from cm4vllm.serving.containers.image import ImageSettings, known_image
from cm4vllm.serving.containers.server_container import container_options, server_container, shown_run
from cm4vllm.serving.launch_settings import chosen_server
from cm4vllm.serving.records import ContainerRecord

__all__ = ["container_notes"]

#: A folder that exists stands for that of a model which is known later.
_ANY_FOLDER = str(Path(__file__).parent)


def container_notes(env: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the notes, none without an image. Of the model and the port what stands for them is shown."""
    settings = read_settings(ImageSettings, env)
    if not settings.image:
        return ()
    engine, device = engine_for(settings.engine), asked_device(env)
    digest, reference = known_image(engine, settings.image)
    tried = f"tried {engine.tried}" if engine.tried else "this engine was not tried by cm4vllm"
    version = engine_version(engine)
    image = ContainerRecord(
        engine=engine.name,
        engine_version=version,
        image=settings.image,
        digest=digest,
        reference=reference or settings.image,
        device=device,
        shm_size=SHM_SIZE,
        options=container_options(settings.options),
    )
    chosen = replace(chosen_server(env, model=_ANY_FOLDER), device=device)
    line = shown_run(server_container(image, chosen), server_argv(Path(settings.python), chosen, "PORT"))
    return (
        f"{settings.image}: on this machine, {digest}" if digest else f"{settings.image}: not on this machine: pulled",
        f"run by {engine.name} {version} ({tried}), for {device}:",
        f"{line.replace(_ANY_FOLDER, 'MODEL')} (with the options of the model, as far as they follow from it)",
    )
