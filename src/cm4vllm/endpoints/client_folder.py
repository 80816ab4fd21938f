"""The folder in which the reference client works: with dataset, tokenizer and metric in it, all paths are relative."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cm4vllm.accuracy.sentences import UNTRAINED
from cm4vllm.assets.model_links import model_links
from cm4vllm.common.errors import DatasetError
from cm4vllm.common.files import writable_folder, write_text
from cm4vllm.common.folders.owned_folders import forget, make_way, staged_file, staged_folder, write_noted
from cm4vllm.common.progress import warn
from cm4vllm.endpoints.client_config import TOKENIZER
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.rules import ClientDataset

_NLTK_DATA = "nltk_data"
#: The suffixes of the files that a tokenizer may be read from; no file with weights has them.
_TOKENIZER_SUFFIXES = (".json", ".jinja", ".model", ".txt")
_METRIC = Path("rouge") / "rouge.py"
#: The files of nltk's sentence model; empty ones are the algorithm without a model (accuracy.sentences.UNTRAINED).
_UNTRAINED_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")


def prepare_folder(
    folder: Path,
    model: ModelRecord,
    dataset: DatasetRecord | None,
    *,
    samples: int = 0,
    files: Mapping[str, Path | None] = {},
) -> None:
    """Lay out the folder for a model and a stored dataset; without a dataset the client reads or fetches its own.

    `samples` are those of a pass: the first of the dataset, 0 for all. `files` are datasets of the user, by their
    places below the folder; None where none is given, and the client is not to read one of an earlier command.
    """
    writable_folder(folder)
    _copy_tokenizer(Path(model.path), folder / TOKENIZER)
    write_noted(folder / _METRIC, Path(__file__).with_name("rouge_metric.txt").read_text(encoding="utf-8"))
    for place, file in files.items():
        _lay_out(folder / place, file)
    if dataset is None:
        return
    rows = _rows(Path(dataset.path), samples)
    write_noted(folder / f"{dataset.name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    if dataset.sentences == UNTRAINED:
        with staged_folder(folder / _NLTK_DATA / "tokenizers" / "punkt_tab" / "english") as english:
            for name in _UNTRAINED_FILES:
                write_text(english / name, "")


def _lay_out(place: Path, file: Path | None) -> None:
    """Copy a given dataset to its place; without one, remove a given one of before, but not what a client fetched."""
    if file is None:
        forget(place)
        return
    writable_folder(place.parent)
    with staged_file(place) as staged:
        shutil.copyfile(file, staged)


def _copy_tokenizer(model: Path, folder: Path) -> None:
    """Copy a model's small files, those of its tokenizer among them: a results folder holds no links.

    The folder holds nothing else then: a file of the user in it would change the tokenizer that the client loads.
    """
    if folder.is_symlink():
        make_way(folder)
    linked = model_links(model)
    if linked.others:
        warn(f"links in {model} lead to what no model needs, which is not copied: {linked.in_words}")
    with staged_folder(folder) as staging:
        for path in sorted(model.iterdir()):
            if path.suffix in _TOKENIZER_SUFFIXES and path.is_file() and path not in linked.others:
                shutil.copyfile(path, staging / path.name)


def datasets_of_ours(dataset: DatasetRecord) -> tuple[ClientDataset, ClientDataset]:
    """Return the stored dataset as the client reads it, lines of JSON with prompts as token ids, and as it scores it.

    A file needs a name of its own for each use: the client keeps its columns by the name.
    """
    performance = ClientDataset(
        name=dataset.name, path=f"{dataset.name}.jsonl", parser={"input_tokens": "input_tokens"}
    )
    scoring = {"scorer": "rouge", "ground_truth": "highlights", "extractor": "identity_extractor"}
    return performance, replace(performance, name=f"{dataset.name}-accuracy", **scoring)


def client_environment(*, hub: bool) -> dict[str, str]:
    """Return the environment of the client: where its sentence model is, and whether the model hub may be used."""
    return {"NLTK_DATA": _NLTK_DATA, **({} if hub else {"HF_HUB_OFFLINE": "1"}), "PYTHONUNBUFFERED": "1"}


def _rows(path: Path, samples: int) -> Iterable[Mapping[str, Any]]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    if samples > len(rows):
        raise DatasetError(f"{path.name} has {len(rows):,} samples", cause=f"a pass of {samples:,} was asked for")
    for row in rows[: samples or None]:
        tokens = row["tok_input"]
        yield {"input_tokens": json.loads(tokens) if isinstance(tokens, str) else tokens, "highlights": row["output"]}
