"""Notes of a plan on a container: what is pulled, and the command that will run it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cm4vllm.common.containers import engine_for
from cm4vllm.common.settings import read_settings
from cm4vllm.serving.arguments import server_argv
from cm4vllm.serving.containers.image import ImageSettings, asked_device, container_of
from cm4vllm.serving.containers.server_container import published_run, server_container
from cm4vllm.serving.launch_settings import chosen_server

__all__ = ["container_notes"]

#: A folder that exists stands for that of a model which is known later.
_ANY_FOLDER = str(Path(__file__).parent)


def container_notes(env: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the notes, none without an image. Of the model and the port what stands for them is shown."""
    settings = read_settings(ImageSettings, env)
    if not settings.image:
        return ()
    engine, device = engine_for(settings.engine), asked_device(env)
    image = container_of(engine, settings, device)
    tried = f"tried {engine.tried}" if engine.tried else "this engine was not tried by cm4vllm"
    chosen = replace(chosen_server(env, model=_ANY_FOLDER), device=device)
    words = published_run(server_container(image, chosen), server_argv(Path(settings.python), chosen, "PORT"))
    line = shlex.join(words).replace(_ANY_FOLDER, "MODEL")
    return (
        f"{image.image}: {f'on this machine, {image.digest}' if image.digest else 'not on this machine: pulled'}",
        f"run by {engine.name} {image.engine_version} ({tried}), for {device}:",
        f"{line} (with the options of the model, as far as they follow from it)",
    )
