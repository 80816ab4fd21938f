"""The links in a model's folder that lead out of it: to files of the model, or to what no model needs."""

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.terminal_text import first_of, spelled_out

#: The files that a loader reads of a model's folder, by name (transformers: utils/__init__.py and
#: tokenization_utils_base.py; vLLM: model_executor/model_loader/ and transformers_utils/; mistral_common: tekken.json).
_READ = (
    *("config.json", "generation_config.json", "params.json", "*.safetensors", "*.safetensors.index.json", "*.gguf"),
    *("pytorch_model*.bin", "pytorch_model*.bin.index.json", "model*.bin", "consolidated*.pth", "*model*.pt"),
    *("adapter_config.json", "adapter_model.bin", "*quant*_config.json", "quantize_config.json"),
    *("tokenizer.*", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.tiktoken", "tekken.json", "spiece.model", "sentencepiece*.model", "*.spm", "chat_template.*"),
    *("*processor_config.json", "configuration_*.py", "modeling_*.py", "tokenization_*.py", "*processing_*.py"),
)
#: What says that a file of a name that other programs use, too, is a model's: its architecture, or in mistral's
#: params.json its width.
_OF_A_MODEL = {"config.json": ("architectures", "model_type"), "params.json": ("dim", "n_layers")}
#: Where the hub's cache has the content of the files of a snapshot, by its digest (huggingface_hub, file_download.py).
_SNAPSHOTS, _CONTENTS = "snapshots", "blobs"


@dataclass(frozen=True)
class ModelLinks:
    """The links of a model's folder that leave it.

    `needed` are the files that they lead to, as the links name them and as they are without links in their paths; of a
    hub's cache, the folder of the contents. `others` are the links to anything else.
    """

    needed: tuple[Path, ...]
    others: tuple[Path, ...]

    @property
    def in_words(self) -> str:
        """The other links and their targets."""
        return first_of([spelled_out(f"{path} -> {path.readlink()}") for path in self.others], 5)


def model_links(model: Path) -> ModelLinks:
    """Return the links in a model's folder that lead out of it.

    A file that a link leads to is needed where a loader reads files of the link's name, and the file has that name,
    too, or is the content of a snapshot of the hub's cache. In a snapshot itself, all contents of its repository are.
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
        elif home.parent.name == _SNAPSHOTS and file.parent == home.parents[1] / _CONTENTS:
            needed[file.parent] = None
        elif _is_read(path.name, file) and path.name == (target if _is_content(file) else file).name:
            needed |= dict.fromkeys(place for place in (target, file) if place.is_file())
        else:
            others.append(path)
    return ModelLinks(tuple(needed), tuple(others))


def _is_read(name: str, file: Path) -> bool:
    """Return True if a loader reads the file under this name."""
    keys = _OF_A_MODEL.get(name)
    return any(fnmatchcase(name, known) for known in _READ) and (
        not keys or not object_of(file).keys().isdisjoint(keys)
    )


def _is_content(file: Path) -> bool:
    """Return True if a file is in the hub's cache the content of one of a snapshot."""
    return file.parent.name == _CONTENTS and (file.parents[1] / _SNAPSHOTS).is_dir()
