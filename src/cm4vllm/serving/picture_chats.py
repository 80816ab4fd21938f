"""Conversations with a picture: how a server is asked (OpenAI's chat completions), and proof that it reads pictures.

The picture goes as a data URL, as the reference sends it (mlcommons/inference multimodal/qwen3-vl, task.py). A server
counts its tokens among those of the prompt.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.serving.records import Api, Dialect, Prompts
from cm4vllm.serving.server_requests import LONG_S, Site, ask, decoded, said, usage_of

__all__ = ["PICTURE_CHATS", "check_pictures", "picture_chat"]

#: How answers to conversations with a picture are read.
PICTURE_CHATS = Dialect(prompts=Prompts.PICTURE)
_SIZE = (64, 64)


def picture_chat(
    model: str, text: str, picture: bytes, form: str, more: Mapping[str, Any], *, system: str = ""
) -> dict[str, Any]:
    """Return the document that asks `text` with a picture after it, a whole file of the format `form`."""
    url = f"data:image/{form};base64,{base64.b64encode(picture).decode()}"
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    first = [{"role": "system", "content": system}] if system else []
    return {"model": model, "messages": [*first, {"role": "user", "content": parts if picture else text}], **more}


def check_pictures(site: Site, model: str, timeout_s: float = LONG_S) -> None:
    """Ask a question with and without a picture, and prove that the picture is read and tokens are counted.

    Raises ServerUnreachable; ServerUnsuitable for a server that takes no picture, does not read it, or does not count.
    """
    from cm4vllm.assets.product_pictures import blank, png  # with numpy, which no other server is asked with

    counts = [_prompt_tokens(site, model, picture, timeout_s) for picture in (png(blank(_SIZE)), b"")]
    if counts[0] <= counts[1]:
        raise _without_pictures(
            site, f"it counts {counts[0]} tokens of a prompt with a picture, and {counts[1]} of the same without"
        )


def _prompt_tokens(site: Site, model: str, picture: bytes, timeout_s: float) -> int:
    """Return the tokens of a short prompt, as the server counts them."""
    path = Api.PICTURES.path
    body = picture_chat(model, "What is this?", picture, "PNG", {"max_tokens": 4, "temperature": 0})
    status, answer = ask(site, "POST", path, body, timeout_s)
    if status != 200:
        raise _without_pictures(site, f"its {path} answers HTTP {status} {said(site, answer)}".strip())
    usage = usage_of([decoded(site, path, answer)])
    prompt = usage.get("prompt_tokens")
    if not isinstance(prompt, int) or not isinstance(usage.get("completion_tokens"), int):
        raise ServerUnsuitable(
            f"the server at {site.endpoint} does not count tokens",
            cause=f"the answers of its {path} have no usage",
            remedy="serve the model with vLLM, which counts them",
        )
    return prompt


def _without_pictures(site: Site, cause: str) -> ServerUnsuitable:
    return ServerUnsuitable(
        f"the server at {site.endpoint} does not read pictures",
        cause=cause,
        remedy="serve a model that reads pictures, as Qwen3-VL, by a server with OpenAI's /v1/chat/completions; vLLM's "
        "CPU build needs the packages of get,vision-packages for it",
    )
