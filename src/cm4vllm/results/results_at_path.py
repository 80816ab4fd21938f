"""Results wherever they lie: a campaign's folder, a submission tree, or a part of either, read into the same model."""

from dataclasses import replace
from pathlib import Path

from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.results.model import Submission
from cm4vllm.results.run_folders import model_folders, read_runs
from cm4vllm.results.submission_trees import read_tree
from cm4vllm.rules import Division

_PLACES = (
    "a campaign's output folder (it holds runs/), a submission tree (it holds open/, closed/ or network/), or "
    "the folder of one system or model in one of them"
)


def open_results(path: Path) -> tuple[Submission, ...]:
    """Read all results in `path`, or those of the system or model whose folder it is.

    Raises UsageError where the folder is missing, SubmissionError where it holds no results.
    """
    path = path.resolve()
    if not path.is_dir():
        raise UsageError(
            f"{path} is a file, not a folder" if path.exists() else f"{path} does not exist", remedy=f"give {_PLACES}"
        )
    base, system, model = _root(path)
    chosen = [
        replace(
            submission,
            results=tuple(
                result for result in submission.results if system in ("", result.system) and model in ("", result.model)
            ),
        )
        for submission in ([read_runs(base, folder) for folder in model_folders(base)] or _tree(base, path))
    ]
    if not any(submission.results for submission in chosen):
        raise SubmissionError(f"{path} holds no results", cause=f"read: {base}", remedy=f"give {_PLACES}")
    return tuple(submission for submission in chosen if submission.results)


def _root(path: Path) -> tuple[Path, str, str]:
    """Return the folder to read, and the system and the model that are meant; empty: all."""
    for up, above in enumerate((path, *path.parents)[:4]):
        if up and (above.name == "runs" or (above.name == "results" and above.parents[1].name in list(Division))):
            below = path.relative_to(above).parts
            return above.parent, below[0], below[1] if len(below) > 1 else ""
    return path, "", ""


def _tree(base: Path, path: Path) -> tuple[Submission, ...]:
    try:
        return read_tree(base)
    except SubmissionError as error:
        raise SubmissionError(f"{path} holds no results", cause=error.cause, remedy=f"give {_PLACES}") from error
