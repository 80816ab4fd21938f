"""The inputs of the recipes that work on a tree: the results that it is built from, its folder, submitter and round."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cm4vllm.common import input_types
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.folders.ownership_notes import require_replaceable
from cm4vllm.common.records import read_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.results.submission_trees import read_tree
from cm4vllm.rules import default_round, round_terms
from cm4vllm.submission.tree import SUBMISSION, system_folder
from cm4vllm.submission.tree_writer import GENERATE, tree_kind

_CHECK = "run,mlperf,inference,submission,checker"


@dataclass(frozen=True)
class TreeInputs:
    """A tree, and the submitter and round of the submission in it that the official checkers are asked about."""

    tree: Path
    submitter: str
    round: str


class TreeSettings(Settings, frozen=True, kw_only=True):
    """The inputs of the recipes that build, check or change a tree: `results` are folders separated by commas.

    `remove` names the results that are removed; with `add` the results are added to the tree. `in_job` is a tree whose
    results are made later in the same job. `model` is the name of the model where the results have none.
    """

    tree: input_types.SubmissionDir = ""
    results: input_types.ResultsDir = ""
    submitter: input_types.Submitter = ""
    round: input_types.Round = ""
    division: input_types.Division = ""
    model: input_types.ModelName = ""
    introduction: Annotated[str, Key("CM_MLPERF_SUBMISSION_INTRODUCTION")] = ""
    remove: Annotated[str, Key("CM_MLPERF_SUBMISSION_REMOVE")] = ""
    add: Annotated[bool, Key("CM_MLPERF_SUBMISSION_ADD")] = False
    in_job: Annotated[bool, Key("CM_MLPERF_SUBMISSION_IN_JOB")] = False

    @property
    def exists_before(self) -> bool:
        """Return True if the tree exists before the recipe runs; that of results is built first."""
        return bool(self.tree and not self.results)


def tree_folder(settings: TreeSettings) -> Path:
    """Return the folder of the tree. Raises SubmissionError where it does not exist."""
    tree = Path(settings.tree).absolute()
    if not tree.is_dir():
        raise SubmissionError(f"no submission in {tree}", remedy=f"build it first: --tags={GENERATE}")
    return tree


def tree_inputs(settings: TreeSettings) -> TreeInputs:
    """Return the tree with its submitter and round; what is not given is read from the tree.

    Raises what tree_folder does, and UsageError where the tree has several submitters, or logs of no known round.
    """
    tree, submitter, round_name = tree_folder(settings), settings.submitter, settings.round
    if submitter and round_name:
        return TreeInputs(tree, submitter, round_terms(round_name).name)
    submissions = [submission for submission in read_tree(tree) if submitter in ("", submission.submitter)]
    names = sorted({submission.submitter for submission in submissions})
    rounds = sorted({submission.round for submission in submissions if submission.round})
    if len(names) != 1:
        raise UsageError(
            f"no single submission is meant in {tree}",
            cause=f"it has those of {', '.join(names)}" if names else f"it has none of {submitter}",
            remedy=f"name it: --tags={_CHECK} --submitter=NAME",
        )
    if not round_name and len(rounds) != 1:
        raise UsageError(
            f"the round of {tree} is not known",
            cause=f"its logs are those of {', '.join(rounds)}"
            if rounds
            else "its logs have the seeds of no known round",
            remedy=f"name it: --tags={_CHECK} --src_version={default_round()}",
        )
    return TreeInputs(tree, names[0], round_terms(round_name or rounds[0]).name)


def place_of_tree(settings: TreeSettings) -> str:
    """Return the folder of the tree, for the steps after it, and refuse inputs from which no tree can be built.

    Raises UsageError where a folder is not named, SubmissionError where a folder of results lacks its record or the
    description of the system. The folder of a job under way gets both before its tree is built.
    """
    tree = settings.tree
    if settings.remove:
        return str(_place(tree, "--remove"))
    if settings.in_job:
        return tree or str(Path(settings.results) / SUBMISSION)
    folders = results_folders(settings.results)
    for folder in folders:
        system_folder(folder)
    if settings.add or len(folders) > 1:
        tree = str(_place(tree, "--add" if settings.add else "several results folders"))
    if settings.add:
        return tree
    tree = tree or str(folders[0] / SUBMISSION)
    submitter = settings.submitter or read_record(folders[0] / CAMPAIGN_FILE, CampaignRecord).submitter
    require_replaceable(Path(tree).absolute(), tree_kind(submitter))
    return tree


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
