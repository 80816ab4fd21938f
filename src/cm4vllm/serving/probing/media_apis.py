"""Endpoints of servers for samples that carry media: how each is asked, and proof that a server has it.

The transcript of a clip is asked for with a form (multipart/form-data; OpenAI's audio transcriptions). vLLM counts
tokens in a stream alone, where `stream_include_usage` asks for it; so every answer is streamed. `prompt_tokens` of its
usage has the positions of the clip in it, and is not compared.

A picture goes into a message of a conversation (OpenAI's chat completions) as a data URL, as the reference sends it
(mlcommons/inference multimodal/qwen3-vl, task.py). A server counts its tokens among those of the prompt.
"""

import base64
import io
import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.records.server import Api, Dialect, Prompts
from cm4vllm.rules import Media
from cm4vllm.serving.answers.stated import Stated
from cm4vllm.serving.probing.server_requests import LONG_S, Site, ask, error_words, read_text

_BOUNDARY = "cm4vllm-8e41b0f6d27c4a53"
#: The content type of a request.
FORM = f"multipart/form-data; boundary={_BOUNDARY}"
#: The reader of a server's transcripts.
TRANSCRIPTS = Dialect(prompts=Prompts.AUDIO, left_out=["min_tokens"])
_RATE_HZ = 16_000
#: How answers to conversations with a picture are read.
PICTURE_CHATS = Dialect(prompts=Prompts.PICTURE)
_PICTURE_SIZE = (64, 64)


def transcription_form(model: str, audio: bytes, more: Mapping[str, str]) -> bytes:
    """Return the form that asks for the transcript of `audio`, a whole file, with further fields."""
    fields = {
        "model": model,
        "language": "en",
        "response_format": "json",
        "stream": "true",
        "stream_include_usage": "true",
        **more,
    }
    parts = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="clip.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    return b"".join([*parts, head.encode(), audio, f"\r\n--{_BOUNDARY}--\r\n".encode()])


def check_transcription(site: Site, model: str, timeout_s: float = LONG_S) -> Stated:
    """Ask for the transcript of a second of silence, and prove that its tokens are counted.

    Returns the server's statements about it. Raises ServerUnreachable; ServerUnsuitable for a server that takes no
    audio, or does not count.
    """
    path = Api.TRANSCRIPTIONS.path
    form = transcription_form(model, _silence(), {"temperature": "0", "max_completion_tokens": "4"})
    status, answer = ask(site, "POST", path, form, timeout_s, content_type=FORM)
    if status != 200:
        raise _without_audio(site, f"its {path} answers HTTP {status} {error_words(site, answer)}".strip())
    try:
        read, done = read_text(site, answer, Prompts.AUDIO, streamed=True)
    except ServerUnsuitable as error:
        raise _without_audio(site, f"its {path}: {error.cause}") from error
    if not done:
        raise _without_audio(site, f"its {path} sends no stream that ends with data: [DONE]")
    if read.stated.tokens < 0:
        raise ServerUnsuitable(
            f"the server at {site.endpoint} does not count the tokens of transcripts",
            cause="its stream has no usage, though stream_include_usage asks for it",
            remedy="serve the model with vLLM, which counts them",
        )
    return read.stated


def _without_audio(site: Site, cause: str) -> ServerUnsuitable:
    return ServerUnsuitable(
        f"the server at {site.endpoint} gives no transcripts of audio",
        cause=cause,
        remedy="serve a model that transcribes, as whisper, by a server with OpenAI's /v1/audio/transcriptions; vLLM "
        "needs the packages of get,speech-packages (or vllm[audio]) for it",
    )


def _silence() -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_RATE_HZ)
        file.writeframes(bytes(2 * _RATE_HZ))
    return data.getvalue()


def picture_chat(
    model: str, text: str, picture: bytes, form: str, more: Mapping[str, Any], *, system: str = ""
) -> dict[str, Any]:
    """Return the document that asks `text` with a picture after it, a whole file of the format `form`."""
    url = f"data:image/{form};base64,{base64.b64encode(picture).decode()}"
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    first = [{"role": "system", "content": system}] if system else []
    return {"model": model, "messages": [*first, {"role": "user", "content": parts if picture else text}], **more}


def check_pictures(site: Site, model: str, timeout_s: float = LONG_S) -> Stated:
    """Ask a question with and without a picture, and prove that the picture is read and tokens are counted.

    Returns the server's statements about the first. Raises ServerUnreachable; ServerUnsuitable for a server that takes
    no picture, does not read it, or does not count.
    """
    from cm4vllm.assets.tiny.product_pictures import blank, png  # with numpy, which no other server is asked with

    stated = [_ask(site, model, picture, timeout_s) for picture in (png(blank(_PICTURE_SIZE)), b"")]
    counts = [each.prompt_tokens for each in stated]
    if counts[0] <= counts[1]:
        raise _without_pictures(
            site, f"it counts {counts[0]} tokens of a prompt with a picture, and {counts[1]} of the same without"
        )
    return stated[0]


def _ask(site: Site, model: str, picture: bytes, timeout_s: float) -> Stated:
    """Return the server's statements about the answer to a short prompt."""
    path = Api.PICTURES.path
    body = picture_chat(model, "What is this?", picture, "PNG", {"max_tokens": 4, "temperature": 0})
    status, answer = ask(site, "POST", path, body, timeout_s)
    if status != 200:
        raise _without_pictures(site, f"its {path} answers HTTP {status} {error_words(site, answer)}".strip())
    stated = read_text(site, answer, Prompts.PICTURE, streamed=False)[0].stated
    if min(stated.prompt_tokens, stated.tokens) < 0:
        raise ServerUnsuitable(
            f"the server at {site.endpoint} does not count tokens",
            cause=f"the answers of its {path} have no usage",
            remedy="serve the model with vLLM, which counts them",
        )
    return stated


def _without_pictures(site: Site, cause: str) -> ServerUnsuitable:
    return ServerUnsuitable(
        f"the server at {site.endpoint} does not read pictures",
        cause=cause,
        remedy="serve a model that reads pictures, as Qwen3-VL, by a server with OpenAI's /v1/chat/completions; vLLM's "
        "CPU build needs the packages of get,vision-packages for it",
    )


@dataclass(frozen=True)
class MediaApi:
    """The endpoint for a kind of media, how its answers are read, and the proof that a server has it.

    `by_hand` are the words after curl's URL that ask {model} for an answer.
    """

    api: Api
    dialect: Dialect
    check: Callable[[Site, str, float], Stated]
    by_hand: str


MEDIA_APIS: Mapping[Media, MediaApi] = {
    Media.AUDIO: MediaApi(
        Api.TRANSCRIPTIONS, TRANSCRIPTS, check_transcription, "-F model={model} -F language=en -F file=@clip.wav"
    ),
    Media.IMAGE: MediaApi(
        Api.PICTURES,
        PICTURE_CHATS,
        check_pictures,
        """-H 'Content-Type: application/json' \\
      -d '{{"model": "{model}", "messages": [{{"role": "user", "content": [{{"type": "text", "text": "What is this?"}},
           {{"type": "image_url", "image_url": {{"url": "data:image/png;base64,..."}}}}]}}]}}'""",
    ),
}


def media_api_of(api: Api) -> MediaApi | None:
    """Return the way to ask that an API belongs to; None for one of text."""
    return next((media_api for media_api in MEDIA_APIS.values() if media_api.api is api), None)
