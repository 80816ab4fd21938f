"""Endpoints of servers for samples that carry media: one for each kind of media, with its proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cm4vllm.rules import Media
from cm4vllm.serving.picture_chats import PICTURE_CHATS, check_pictures
from cm4vllm.serving.records import Api, Dialect
from cm4vllm.serving.server_requests import Site
from cm4vllm.serving.transcripts import TRANSCRIPTS, check_transcription

__all__ = ["MEDIA_APIS", "MediaApi", "media_api_of", "media_of_api"]


@dataclass(frozen=True)
class MediaApi:
    """The endpoint for a kind of media, how its answers are read, and the proof that a server has it.

    `by_hand` are the words after curl's URL that ask {model} for an answer.
    """

    api: Api
    dialect: Dialect
    check: Callable[[Site, str, float], None]
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


def media_of_api(api: Api) -> Media | None:
    """Return the media that an API is for; None for one of text."""
    return next((media for media, media_api in MEDIA_APIS.items() if media_api.api is api), None)


def media_api_of(api: Api) -> MediaApi | None:
    """Return the way to ask that an API belongs to; None for one of text."""
    media = media_of_api(api)
    return MEDIA_APIS[media] if media else None
