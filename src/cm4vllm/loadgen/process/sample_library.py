"""LoadGen's query sample library: the prompts of a dataset, serialised as requests while they are loaded."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.assets.samples.published_formats import recorded_rows
from cm4vllm.common.errors import DatasetError
from cm4vllm.loadgen.client.text_tokens import prompt_texts
from cm4vllm.loadgen.client.wire import Sampling, completion_body, sampling_parameters, text_completion_body
from cm4vllm.loadgen.settings import sampling_of
from cm4vllm.records.assets import DatasetRecord
from cm4vllm.records.run import RunSettings
from cm4vllm.records.server import Prompts
from cm4vllm.rules import ChatPrompt, Media
from cm4vllm.serving.probing.media_apis import picture_chat, transcription_form


def read_rows(dataset: DatasetRecord, count: int) -> list[dict[str, Any]]:
    """Return the first `count` rows of a dataset.

    Raises DatasetError when its file is not the one that the record describes.
    """
    rows = recorded_rows(dataset, "read it again: cm run script --tags=get,dataset --renew")
    if len(rows) < count:
        raise DatasetError(f"{dataset.path} has {len(rows)} samples, the run needs {count}")
    return rows[:count]


class SampleLibrary:
    """The prompts, serialised in memory that other processes can map: nothing is serialised while the test runs.

    `records[index]` is offset and length of a body in the memory behind `descriptor`, and the tokens of its prompt. A
    sample that LoadGen unloads stays there: LoadGen loads each sample of the library once in a run. `bodies` are what
    is serialised in the place of the prompts' token ids, where a request is made of more than these or of text.
    `prompts_changed` is how many of them the server reads as other token ids.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        serialise: Callable[[Any], bytes],
        bodies: Sequence[Any] | None = None,
        prompts_changed: int = 0,
    ) -> None:
        """Take the prompts as token ids, and what serialises a body; `bodies` are given where they are not prompts."""
        self.prompts_changed = prompts_changed
        self.descriptor = os.memfd_create("bodies")
        self.records: dict[int, tuple[int, int, int]] = {}
        self._prompts = prompts
        self._bodies: Sequence[Any] = prompts if bodies is None else bodies
        self._serialise = serialise
        self._size = 0

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def longest_prompt(self) -> int:
        """The most tokens of a prompt: those of a picture among them, without what stands for a clip."""
        return max(map(len, self._prompts))

    def load(self, indices: Iterable[int]) -> None:
        """Serialise these samples (LoadSamplesToRam)."""
        with os.fdopen(os.dup(self.descriptor), "wb") as file:
            for index in indices:
                if index not in self.records:
                    length = file.write(self._serialise(self._bodies[index]))
                    self.records[index] = (self._size, length, len(self._prompts[index]))
                    self._size += length

    def body(self, index: int) -> bytes:
        """Return the request of one sample."""
        return self._serialise(self._bodies[index])

    def unload(self, indices: Iterable[int]) -> None:
        """Keep these samples (UnloadSamplesFromRam)."""


def audio_library(folder: Path, rows: Sequence[Mapping[str, Any]], sampling: Sampling) -> SampleLibrary:
    """Return the clips of a dataset's rows, which lie in `folder`, as requests."""
    asked = {"temperature": str(sampling.temperature), "max_completion_tokens": str(sampling.max_tokens)}
    if sampling.seed is not None:
        asked["seed"] = str(sampling.seed)

    def form(row: Mapping[str, Any]) -> bytes:
        """Return the multipart body of a row's audio clip."""
        return transcription_form(sampling.model, (folder / row["audio"]).read_bytes(), asked)

    return SampleLibrary([range(row["prompt_tokens"]) for row in rows], form, rows)


def picture_library(
    folder: Path, rows: Sequence[Mapping[str, Any]], sampling: Sampling, prompt: ChatPrompt
) -> SampleLibrary:
    """Return the products of a dataset's rows, whose pictures lie in `folder`, as requests."""
    asked = sampling_parameters(sampling)

    def body(row: Mapping[str, Any]) -> bytes:
        """Return the chat request of a row, with its picture."""
        (system, user), picture = prompt.messages(row), (folder / row["picture"]).read_bytes()
        return msgspec.json.encode(picture_chat(sampling.model, user, picture, row["format"], asked, system=system))

    return SampleLibrary([range(row["prompt_tokens"][prompt.name]) for row in rows], body, rows)


def library_of(settings: RunSettings, rows: Sequence[dict[str, Any]]) -> SampleLibrary:
    """Return the prompts of a run in its server's form."""
    sampling = sampling_of(settings)
    if settings.terms.media is Media.AUDIO:
        return audio_library(Path(settings.dataset.media_folder), rows, sampling)
    if settings.terms.prompt is not None:
        return picture_library(Path(settings.dataset.media_folder), rows, sampling, settings.terms.prompt)
    prompts, dialect = [row["tok_input"] for row in rows], settings.server.dialect
    if dialect is None:
        stops = [tuple(stop.text for stop in settings.terms.stops if stop.ends(row)) for row in rows]
        asked = {stop: replace(sampling, stop=stop) for stop in set(stops)}
        return SampleLibrary(
            prompts, lambda body: completion_body(asked[body[0]], body[1]), list(zip(stops, prompts, strict=True))
        )
    serialise = partial(text_completion_body, sampling, dialect)
    if dialect.prompts is Prompts.IDS:
        return SampleLibrary(prompts, serialise)
    texts, lengths, changed = prompt_texts(settings, rows)
    return SampleLibrary([range(length) for length in lengths], serialise, texts, changed)
