"""LiveCodeBench's problems with their tests: files of gigabytes, of which a run needs some hundred rows.

The data set is livecodebench/code_generation_lite of Hugging Face, at its newest test.jsonl to test6.jsonl: a JSON
object a line, by `question_id`. Its loading script gives the files of each release: release_v1 is test.jsonl, each
later release has one more.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cm4vllm.common.errors import DatasetError, UsageError
from cm4vllm.common.records import Record

#: The command that brings the files.
HOW_TO_FETCH = "hf download livecodebench/code_generation_lite --repo-type=dataset --local-dir=FOLDER"


class ProblemIndex(Record, frozen=True, kw_only=True):
    """The place of each problem, by its question_id: file, first byte and bytes of its line. `files` have SHA-256s."""

    folder: str
    files: dict[str, str]
    places: dict[str, tuple[str, int, int]]


class _Row(msgspec.Struct, frozen=True):
    question_id: str


def require_problem_files(folder: Path, names: Sequence[str]) -> None:
    """Raise UsageError unless the folder exists and has these files."""
    if not folder.is_dir():
        raise UsageError(
            f"--livecodebench_path={folder} is not usable",
            cause="it is a file, not a folder" if folder.exists() else "the folder does not exist",
            remedy=f"give the folder into which you fetched the data set: {HOW_TO_FETCH}",
        )
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise UsageError(
            f"--livecodebench_path={folder} has no {', '.join(missing)}",
            cause="the programs are judged by the tests in these files",
            remedy=f"fetch the data set: {HOW_TO_FETCH}",
        )


def index_problems(folder: Path, names: Sequence[str]) -> ProblemIndex:
    """Read the files once, a line at a time. Raises UsageError where one is missing, DatasetError for other content."""
    require_problem_files(folder, names)
    files, places = {}, {}
    for name in names:
        digest, start = hashlib.sha256(), 0
        with (folder / name).open("rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if line.strip():
                    places[_row(line, folder / name, number).question_id] = (name, start, len(line))
                start += len(line)
        files[name] = f"sha256:{digest.hexdigest()}"
    return ProblemIndex(folder=str(folder.absolute()), files=files, places=places)


def problem(index: ProblemIndex, question_id: str) -> str:
    """Return a problem's row as it stands in the file, empty where the files have none of this id.

    Raises DatasetError where the files have changed.
    """
    if question_id not in index.places:
        return ""
    name, start, length = index.places[question_id]
    path = Path(index.folder) / name
    try:
        with path.open("rb") as file:
            file.seek(start)
            line = file.read(length)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read", cause=str(error.strerror)) from error
    if _row(line, path, 0).question_id != question_id:
        raise DatasetError(
            f"{path} has changed since the grader was made ready",
            remedy="make it ready again: cm run script --tags=get,mlperf,grader,_livecodebench --new",
        )
    return line.decode()


def _row(line: bytes, path: Path, number: int) -> _Row:
    """Return the problem of one line. Raises DatasetError, naming the line, for anything else."""
    try:
        return msgspec.json.decode(line, type=_Row)
    except (ValueError, RecursionError) as error:
        where = f"line {number} of {path}" if number else str(path)
        raise DatasetError(
            f"{where} is no problem of LiveCodeBench", cause=str(error), remedy=f"fetch it again: {HOW_TO_FETCH}"
        ) from error
