"""LoadGen's query sample library: the prompts of a dataset, serialised as requests while they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from cm4vllm.assets.datasets import rows_of
from cm4vllm.assets.records import DatasetRecord
from cm4vllm.common.errors import DatasetError
from cm4vllm.common.files import sha256_of
from cm4vllm.loadgen.client import Request

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
    """The prompts, and the requests of those that LoadGen has loaded: nothing is serialised while the test runs."""

    def __init__(self, prompts: list[list[int]], serialise: Callable[[list[int]], bytes]) -> None:
        self.requests: dict[int, Request] = {}
        self._prompts = prompts
        self._serialise = serialise

    def __len__(self) -> int:
        return len(self._prompts)

    def load(self, indices: Iterable[int]) -> None:
        """Serialise the requests of these samples (LoadSamplesToRam)."""
        for index in indices:
            prompt = self._prompts[index]
            self.requests[index] = Request(self._serialise(prompt), len(prompt))

    def unload(self, indices: Iterable[int]) -> None:
        """Forget the requests of these samples (UnloadSamplesFromRam)."""
        for index in indices:
            self.requests.pop(index, None)
