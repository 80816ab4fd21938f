"""Dataset files in the formats they are published in, and the one format that we read afterwards.

Ours is a JSON list of rows, each with `tok_input` (token ids), `input` and `output` (texts), and whatever else of the
published row a scorer may need. Files of samples that carry media lie below the dataset's folder, each with its digest
in the rows.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from cm4vllm.assets.samples.bounded_tables import rows_apart, unpacked_bytes
from cm4vllm.common.bounded_documents import json_of
from cm4vllm.common.errors import DatasetError
from cm4vllm.common.files import sha256_of, write_text
from cm4vllm.records.assets import DatasetRecord
from cm4vllm.records.weights.checkpoint import FETCH, is_pointer

#: The columns of our datasets.
COLUMNS = ("input", "tok_input", "output")
#: The published names of our columns, by benchmark: llama2-70b and llama3.1-8b have the same; mixtral-8x7b and
#: llama3.1-405b have gt_output (language/*/dataset.py, evaluate-accuracy.py); deepseek-r1 and gpt-oss-120b the others
#: (eval_accuracy.py).
_OTHER_NAMES = {
    "input": ("text_input", "question", "prompt"),
    "tok_input": ("input_tokens",),
    "output": ("gt_output", "ground_truth"),
}
#: The ends of the names of files that can be read, and names of files beside data, as the hub's library writes them.
_ENDS = (".json", ".pkl", ".pkl.gz", ".parquet")
_NO_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json")
_NAMED, _SEEN = 3, 10_000
_AS_PUBLISHED = "give the file in the published format: .json, .pkl, .pkl.gz or .parquet"


def require_file(path: Path) -> None:
    """Raise DatasetError where there is no such file: a folder, or a pointer in its place, is named as what it is."""
    if path.is_dir():
        inside = (file for file in islice(path.rglob("*"), _SEEN) if file.name.endswith(_ENDS) and file.is_file())
        names = sorted(str(file.relative_to(path)) for file in inside if file.name not in _NO_DATA)
        some = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if names[_NAMED:] else "")
        raise DatasetError(
            f"{path} is a folder, and the dataset is one file",
            cause=f"it holds {some}" if names else f"no file in it ends in {', '.join(_ENDS)}",
            remedy=f"give one of its files, as {path / names[0]}" if names else _AS_PUBLISHED,
        )
    if not path.is_file():
        raise DatasetError(f"there is no dataset {path}", remedy="give a file: --dataset_path=<file>")
    if is_pointer(path):
        raise DatasetError(f"{path} is a pointer of git-lfs in the place of the file", remedy=FETCH)


def require_samples(path: Path, samples: int, expected: int | None) -> None:
    """Raise DatasetError for a dataset that has another number of samples than the benchmark's; None stands for any."""
    if expected is not None and samples != expected:
        raise DatasetError(
            f"{path} has {samples} samples",
            cause=f"the benchmark's dataset has {expected}",
            remedy="give the whole dataset: a result needs it, a rehearsal (--execution_mode=test) takes any number",
        )


def read_published(path: Path) -> list[dict[str, Any]]:
    """Read a dataset file by its name's ending and return its rows under our names. Raises DatasetError."""
    require_file(path)
    kinds = path.name.lower().split(".")
    if kinds[-1] == "gz":
        kinds.pop()
    return list(map(_with_our_names, rows_apart(path) if kinds[-1] in ("pkl", "pickle", "parquet") else rows_of(path)))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Read a JSON file as pandas.read_json does: a list of records, or an object of columns by index."""
    require_file(path)
    try:
        value = json_of(unpacked_bytes(path))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} is not a JSON file", cause=str(error), remedy=_AS_PUBLISHED) from error
    rows = _from_columns(path, value) if isinstance(value, dict) else value
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise DatasetError(
            f"{path} holds no records",
            cause="neither a list of records nor an object of columns",
            remedy=f"each record has {', '.join(COLUMNS)}, as in cnn_eval.json",
        )
    return rows


def recorded_rows(dataset: DatasetRecord, remedy: str) -> list[dict[str, Any]]:
    """Return the rows of a dataset. Raises DatasetError, with the remedy, where its file has changed since."""
    path = Path(dataset.path)
    rows = rows_of(path)
    if sha256_of(path) != dataset.sha256:
        raise DatasetError(f"{path} has changed since its record was made", cause="its SHA-256 differs", remedy=remedy)
    return rows


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a file of our format."""
    write_text(path, json.dumps(rows, separators=(",", ":")) + "\n")


def _from_columns(path: Path, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    values = {name: list(column.values()) if isinstance(column, dict) else column for name, column in columns.items()}
    if not all(isinstance(value, list) for value in values.values()):
        return []
    if len({len(value) for value in values.values()}) != 1:
        raise DatasetError(f"{path} has columns of different lengths", remedy="copy or download the dataset again")
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _with_our_names(row: Mapping[str, Any]) -> dict[str, Any]:
    row = dict(row)
    for ours, others in _OTHER_NAMES.items():
        name = next((other for other in others if other in row), None)
        if ours not in row and name is not None:
            row[ours] = _as_text(row[name]) if ours == "output" else row[name]
    return row


def _as_text(value: Any) -> Any:
    """Return a number, the answer to a problem, as text; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return str(int(value)) if float(value).is_integer() else repr(value)


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
