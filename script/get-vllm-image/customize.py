"""Has an image tell which vLLM it has; the image is pulled where it is missing."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.containers.image import require_container
    from cm4vllm.serving.launch_settings import container_notes

    require_container(i["env"])
    return {"return": 0, "notes": container_notes(i["env"])}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.containers.image import image_env

    i["env"].update(image_env(i["env"]))
    return {"return": 0}
