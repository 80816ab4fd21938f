"""Samples with a picture: the conversations that ask for the category of a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.loadgen.client.wire import Sampling, drawn
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.rules import ChatPrompt
from cm4vllm.serving.media_apis import picture_chat

__all__ = ["picture_library"]


def picture_library(
    folder: Path, rows: Sequence[Mapping[str, Any]], sampling: Sampling, prompt: ChatPrompt
) -> SampleLibrary:
    """Return the products of a dataset's rows, whose pictures lie in `folder`, as requests."""
    asked = drawn(sampling)

    def body(row: Mapping[str, Any]) -> bytes:
        system, user = prompt.messages(row)
        picture = (folder / row["picture"]).read_bytes()
        return msgspec.json.encode(picture_chat(sampling.model, user, picture, row["format"], asked, system=system))

    return SampleLibrary([range(row["prompt_tokens"][prompt.name]) for row in rows], body, rows)
