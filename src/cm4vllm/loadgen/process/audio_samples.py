"""Samples of audio: the requests that ask for the transcripts of clips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cm4vllm.loadgen.client.wire import Sampling
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.serving.media_apis import transcription_form

__all__ = ["audio_library"]


def audio_library(folder: Path, rows: Sequence[Mapping[str, Any]], sampling: Sampling) -> SampleLibrary:
    """Return the clips of a dataset's rows, which lie in `folder`, as requests."""
    drawn = {"temperature": str(sampling.temperature), "max_completion_tokens": str(sampling.max_tokens)}
    if sampling.seed is not None:
        drawn["seed"] = str(sampling.seed)

    def form(row: Mapping[str, Any]) -> bytes:
        return transcription_form(sampling.model, (folder / row["audio"]).read_bytes(), drawn)

    return SampleLibrary([range(row["prompt_tokens"]) for row in rows], form, rows)
