"""LoadGen's query sample library: the prompts of a dataset, serialised as requests while they are loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from cm4vllm.assets.datasets import rows_of
from cm4vllm.assets.records import DatasetRecord
from cm4vllm.common.errors import DatasetError
from cm4vllm.common.files import sha256_of

__all__ = ["SampleLibrary", "read_prompts"]


def read_prompts(dataset: DatasetRecord, count: int) -> list[list[int]]:
    """Return the token ids of the first `count` prompts of a dataset.

    Raises DatasetError when its file is not the one that the record describes.
    """
    path = Path(dataset.path)
    rows = rows_of(path)
    if sha256_of(path) != dataset.sha256:
        raise DatasetError(f"{path} has changed since its record was made", cause="its SHA-256 differs",
                           remedy="read it again: cm run script --tags=get,dataset --renew")
    prompts = [row["tok_input"] for row in rows[:count]]
    if len(prompts) < count:
        raise DatasetError(f"{path} has {len(prompts)} samples, the run needs {count}")
    return prompts


class SampleLibrary:
    """The prompts, serialised in memory that other processes can map: nothing is serialised while the test runs.

    `records[index]` is offset and length of a body in the memory behind `descriptor`, and the tokens of its prompt. A
    sample that LoadGen unloads stays there: LoadGen loads each sample of the library once in a run.
    """

    def __init__(self, prompts: list[list[int]], serialise: Callable[[list[int]], bytes]) -> None:
        self.descriptor = os.memfd_create("bodies")
        self.records: dict[int, tuple[int, int, int]] = {}
        self._prompts = prompts
        self._serialise = serialise
        self._size = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def load(self, indices: Iterable[int]) -> None:
        """Serialise these samples (LoadSamplesToRam)."""
        with os.fdopen(os.dup(self.descriptor), "wb") as file:
            for index in indices:
                if index not in self.records:
                    prompt = self._prompts[index]
                    length = file.write(self._serialise(prompt))
                    self.records[index] = (self._size, length, len(prompt))
                    self._size += length

    def unload(self, indices: Iterable[int]) -> None:
        """Keep these samples (UnloadSamplesFromRam)."""
