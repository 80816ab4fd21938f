"""The results folders that a submission tree is built from, and the place of the tree, out of a recipe's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.results.campaign_record import CAMPAIGN_FILE
from cm4vllm.submission.tree import SUBMISSION, system_folder
from cm4vllm.submission.tree_inputs import TREE
from cm4vllm.submission.tree_writer import GENERATE

__all__ = ["results_folders", "submission_inputs"]

_RESULTS = "CM_MLPERF_RESULTS_DIR"


def submission_inputs(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the place of the tree, for the steps after it, and refuse inputs from which no tree can be built.

    Raises UsageError where a folder is not named, SubmissionError where a folder of results lacks its record or the
    description of the system. The folder of a job under way gets both before its tree is built.
    """
    tree, results = str(env.get(TREE) or ""), str(env.get(_RESULTS) or "")
    if env.get("CM_MLPERF_SUBMISSION_REMOVE"):
        return {TREE: str(_place(tree, "--remove"))}
    if env.get("CM_MLPERF_SUBMISSION_IN_JOB") == "yes":
        return {TREE: tree or str(Path(results) / SUBMISSION)}
    folders = results_folders(results)
    for folder in folders:
        system_folder(folder)
    add = env.get("CM_MLPERF_SUBMISSION_ADD") == "yes"
    if add or len(folders) > 1:
        return {TREE: str(_place(tree, "--add" if add else "several results folders"))}
    return {TREE: tree or str(folders[0] / SUBMISSION)}


def _place(tree: str, why: str) -> Path:
    if not tree:
        raise UsageError(f"{why}: no tree was named", remedy=f"give its folder: --tags={GENERATE} --submission_dir=DIR")
    return Path(tree).absolute()


def results_folders(given: str) -> list[Path]:
    """Return the results folders of a list separated by commas.

    Raises UsageError where none is given, SubmissionError where one holds no results.
    """
    if not given:
        raise UsageError(
            "no results folder is named", remedy="--results_dir=FOLDER of a job's results: OUTPUT_DIR/test or /valid"
        )
    names = [given] if Path(given).is_dir() else [name.strip() for name in given.split(",") if name.strip()]
    folders = [Path(name).expanduser().absolute() for name in names]
    for folder in folders:
        if not (folder / CAMPAIGN_FILE).is_file():
            below = [str(path.parent) for path in sorted(folder.glob(f"*/{CAMPAIGN_FILE}"))]
            raise SubmissionError(
                f"no results in {folder}",
                cause=f"no {CAMPAIGN_FILE} in it",
                remedy=f"--results_dir={' or '.join(below)}"
                if below
                else "give the folders of jobs' results with --results_dir, separated by commas",
            )
    return folders
