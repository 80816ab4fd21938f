"""LoadGen's query sample library: the prompts of a dataset, serialised as requests while they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from cm4vllm.common.errors import DatasetError
from cm4vllm.loadgen.client import Request

__all__ = ["SampleLibrary", "read_prompts"]


class _Sample(msgspec.Struct, frozen=True):
    tok_input: list[int]


def read_prompts(path: Path, count: int) -> list[list[int]]:
    """Return the token ids of the first `count` prompts of a dataset file. Raises DatasetError."""
    try:
        samples = msgspec.json.decode(path.read_bytes(), type=list[_Sample])
    except OSError as error:
        raise DatasetError(f"cannot read the dataset {path}", cause=str(error.strerror)) from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DatasetError(f"{path} is not a dataset", cause=str(error),
                           remedy="it must be a JSON list of {input, tok_input, output}") from error
    if len(samples) < count:
        raise DatasetError(f"{path} has {len(samples)} samples, the run needs {count}")
    prompts = [sample.tok_input for sample in samples[:count]]
    empty = next((index for index, prompt in enumerate(prompts) if not prompt), None)
    if empty is not None:
        raise DatasetError(f"{path} has an empty prompt", cause=f"sample {empty} has no tok_input")
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
