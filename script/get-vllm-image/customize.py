"""Has an image tell which vLLM it has; the image is pulled where it is missing."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.launch_settings import LaunchSettings, container_notes
    from cm4vllm.serving.server_container import require_container

    settings = LaunchSettings.of(i["env"])
    require_container(settings.image)
    return {"return": 0, "notes": container_notes(settings)}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.server_container import ImageSettings, provide_image

    i["env"].update(provide_image(ImageSettings.of(i["env"])).env())
    return {"return": 0}
