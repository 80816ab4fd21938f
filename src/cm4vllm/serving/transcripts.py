"""Transcripts: how a server is asked for the text of a clip (OpenAI's audio transcriptions), and proof that it can be.

A request is a form (multipart/form-data). vLLM counts tokens in a stream alone, where `stream_include_usage` asks for
it; so every answer is streamed. `prompt_tokens` of its usage has the positions of the clip in it, and is not compared.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping

from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.serving.records import Api, Dialect, Prompts
from cm4vllm.serving.server_requests import LONG_S, Site, ask, events_of, said, usage_of

__all__ = ["FORM", "TRANSCRIPTS", "check_transcription", "transcription_form"]

_BOUNDARY = "cm4vllm-8e41b0f6d27c4a53"
#: The content type of a request.
FORM = f"multipart/form-data; boundary={_BOUNDARY}"
#: The reader of a server's transcripts.
TRANSCRIPTS = Dialect(prompts=Prompts.AUDIO, left_out=["min_tokens"])
_RATE_HZ = 16_000


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


def check_transcription(site: Site, model: str, timeout_s: float = LONG_S) -> None:
    """Ask for the transcript of a second of silence, and prove that its tokens are counted.

    Raises ServerUnreachable; ServerUnsuitable for a server that takes no audio, or does not count.
    """
    path = Api.TRANSCRIPTIONS.path
    form = transcription_form(model, _silence(), {"temperature": "0", "max_completion_tokens": "4"})
    status, answer = ask(site, "POST", path, form, timeout_s, content_type=FORM)
    if status != 200:
        raise _without_audio(site, f"its {path} answers HTTP {status} {said(site, answer)}".strip())
    documents, done = events_of(site, path, answer)
    if not done:
        raise _without_audio(site, f"its {path} sends no stream that ends with data: [DONE]")
    if error := next((document["error"] for document in documents if document.get("error")), None):
        raise _without_audio(site, site.access.hidden(f"it answered: {str(error)[:200]}"))
    if not isinstance(usage_of(documents).get("completion_tokens"), int):
        raise ServerUnsuitable(
            f"the server at {site.endpoint} does not count the tokens of transcripts",
            cause="its stream has no usage, though stream_include_usage asks for it",
            remedy="serve the model with vLLM, which counts them",
        )


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
