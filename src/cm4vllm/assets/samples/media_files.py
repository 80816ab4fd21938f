"""Files of samples that carry media: they lie below the dataset's folder, each with its digest in the rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cm4vllm.assets.samples.published_formats import write_rows
from cm4vllm.common.errors import DatasetError
from cm4vllm.common.files import sha256_of
from cm4vllm.records.assets import DatasetRecord

#: The columns that hold the name of a sample's file, each with the kind of the file.
_KINDS: Mapping[str, str] = {"audio": "clip", "picture": "picture"}


def media_record(
    rows: list[dict[str, Any]],
    files: Path,
    path: Path,
    *,
    source: str,
    source_sha256: str = "",
    tokenizer_sha256: str = "",
    recipe: dict[str, str],
) -> DatasetRecord:
    """Write the rows of media, whose files lie in the folder `files`, to `path`, and return the dataset's record."""
    write_rows(path, rows)
    return DatasetRecord(
        name=path.name.partition(".")[0],
        path=str(path),
        source=source,
        sha256=sha256_of(path),
        source_sha256=source_sha256,
        tokenizer_sha256=tokenizer_sha256,
        samples=len(rows),
        max_input_tokens=max(map(_most_prompt_tokens, rows)),
        media_folder=str(files),
        recipe=recipe,
    )


def _most_prompt_tokens(row: Mapping[str, Any]) -> int:
    """Return the tokens of a sample's prompt; where rounds have different prompts, those of the longest."""
    counts = row["prompt_tokens"]
    return max(counts.values()) if isinstance(counts, dict) else int(counts)


def require_media(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise DatasetError for a file that is missing, or is not that of the dataset's record."""
    digests: dict[str, str] = {}
    for number, row in enumerate(rows):
        column = next(column for column in _KINDS if column in row)
        name = str(row[column])
        path = folder / name
        if name not in digests:
            if not path.is_file():
                raise DatasetError(
                    f"sample {number} has no {_KINDS[column]} {path}",
                    cause="no such file",
                    remedy="make the files as the reference does, or download them again",
                )
            digests[name] = sha256_of(path)
        if digests[name] != row["sha256"]:
            raise DatasetError(
                f"{path} has changed since the dataset's record was made",
                cause="its SHA-256 differs",
                remedy="read it again: cm run script --tags=get,dataset --renew",
            )
