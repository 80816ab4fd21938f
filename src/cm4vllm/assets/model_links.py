"""The links in a model's folder that lead out of it: to files of the model, or to what no model needs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.terminal_text import first_of, spelled_out

__all__ = ["ModelLinks", "model_links"]

#: The suffixes of the files that a model is read from.
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json", ".jinja", ".model", ".txt", ".tiktoken", ".py")
#: Where the hub's cache has the content of the files of a snapshot, by its digest (huggingface_hub, file_download.py).
_HUB_CONTENT = ("snapshots", "blobs")
_NAMED = 5


@dataclass(frozen=True)
class ModelLinks:
    """The links of a model's folder that leave it.

    `needed` are the files that they lead to, as the links name them and as they are without links in their paths; of a
    hub's cache, the folder of the contents. `others` are links to a folder, to no file, or to a file of another name.
    """

    needed: tuple[Path, ...]
    others: tuple[Path, ...]

    @property
    def in_words(self) -> str:
        """The other links and their targets."""
        return first_of([spelled_out(f"{path} -> {path.readlink()}") for path in self.others], _NAMED)


def model_links(model: Path) -> ModelLinks:
    """Return the links in a model's folder that lead out of it.

    A file that a link leads to is one of the model where it has the link's name with the suffix of such a file, or
    is the content of a snapshot of the hub's cache.
    """
    home = model.resolve()
    needed, others = dict[Path, None](), list[Path]()
    for path in sorted(path for path in model.rglob("*") if path.is_symlink()):
        target = Path(os.path.normpath(path.parent / path.readlink()))
        file = Path(os.path.realpath(path))
        if file.is_relative_to(home) and file.exists():
            continue
        if not file.is_file():
            others.append(path)
        elif (home.parent.name, file.parent.name) == _HUB_CONTENT and file.parent.parent == home.parent.parent:
            needed[file.parent] = None
        elif file.name == path.name and path.suffix in _SUFFIXES:
            needed |= dict.fromkeys(place for place in (target, file) if place.is_file())
        else:
            others.append(path)
    return ModelLinks(tuple(needed), tuple(others))
