"""The inputs of the recipes that work on a tree: the results that it is built from, its folder, submitter and round."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.folders.replaceable_folders import require_replaceable
from cm4vllm.common.records import read_record
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.results.submission_trees import read_tree
from cm4vllm.rules import default_round, round_terms
from cm4vllm.submission.tree import SUBMISSION, system_folder
from cm4vllm.submission.tree_writer import GENERATE, tree_kind

#: The key of the tree's folder.
TREE = "CM_MLPERF_INFERENCE_SUBMISSION_DIR"
_RESULTS = "CM_MLPERF_RESULTS_DIR"
_CHECK = "run,mlperf,inference,submission,checker"


@dataclass(frozen=True)
class TreeInputs:
    """A tree, and the submitter and round of the submission in it that the official checkers are asked about."""

    tree: Path
    submitter: str
    round: str


def tree_folder(env: Mapping[str, Any]) -> Path:
    """Return the folder of the tree. Raises SubmissionError where it does not exist."""
    tree = Path(env[TREE]).absolute()
    if not tree.is_dir():
        raise SubmissionError(f"no submission in {tree}", remedy=f"build it first: --tags={GENERATE}")
    return tree


def tree_inputs(env: Mapping[str, Any]) -> TreeInputs:
    """Return the tree with its submitter and round; what is not given is read from the tree.

    Raises what tree_folder does, and UsageError where the tree has several submitters, or logs of no known round.
    """
    tree = tree_folder(env)
    submitter, round_name = str(env.get("CM_MLPERF_SUBMITTER") or ""), str(env.get("CM_MLPERF_ROUND") or "")
    if submitter and round_name:
        return TreeInputs(tree, submitter, round_terms(round_name).name)
    submissions = [submission for submission in read_tree(tree) if submitter in ("", submission.submitter)]
    names = sorted({submission.submitter for submission in submissions})
    rounds = sorted({submission.round for submission in submissions if submission.round})
    if len(names) != 1:
        cause = f"it has those of {', '.join(names)}" if names else f"it has none of {submitter}"
        raise UsageError(
            f"no single submission is meant in {tree}", cause=cause, remedy=f"name it: --tags={_CHECK} --submitter=NAME"
        )
    if not round_name and len(rounds) != 1:
        cause = f"its logs are those of {', '.join(rounds)}" if rounds else "its logs have the seeds of no known round"
        raise UsageError(
            f"the round of {tree} is not known",
            cause=cause,
            remedy=f"name it: --tags={_CHECK} --src_version={default_round()}",
        )
    return TreeInputs(tree, names[0], round_terms(round_name or rounds[0]).name)


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
        tree = str(_place(tree, "--add" if add else "several results folders"))
    if add:
        return {TREE: tree}
    tree = tree or str(folders[0] / SUBMISSION)
    submitter = (
        str(env.get("CM_MLPERF_SUBMITTER") or "") or read_record(folders[0] / CAMPAIGN_FILE, CampaignRecord).submitter
    )
    require_replaceable(Path(tree).absolute(), tree_kind(submitter))
    return {TREE: tree}


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
