"""What a results folder puts into a submission tree: its records, and the pages that this package renders of them."""

from __future__ import annotations

from pathlib import Path

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.records import read_record
from cm4vllm.report import wording
from cm4vllm.report.model import load
from cm4vllm.report.readme import measurement_readmes
from cm4vllm.report.summary import summary_html
from cm4vllm.results.records import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.rules import Division
from cm4vllm.submission.capsule.from_records import capsule_of_results
from cm4vllm.submission.capsule.rerun_file import as_yaml
from cm4vllm.submission.tree import TreeAsked, system_folder

__all__ = ["results_folders", "tree_asked"]


def results_folders(given: str) -> list[Path]:
    """Return the results folders of a list separated by commas. Raises SubmissionError where one is missing."""
    names = [given] if Path(given).is_dir() else [name.strip() for name in given.split(",") if name.strip()]
    folders = [Path(name).expanduser().absolute() for name in names]
    missing = [folder for folder in folders if not (folder / CAMPAIGN_FILE).is_file()]
    if missing or not folders:
        raise SubmissionError(
            f"no results in {missing[0] if missing else given or 'no folder'}",
            cause=f"no {CAMPAIGN_FILE} in it",
            remedy="give the folders of jobs' results with --results_dir, separated by commas",
        )
    return folders


def tree_asked(
    out: Path, *, submitter: str = "", division: str = "", model: str = "", introduction: str = ""
) -> TreeAsked:
    """Return what the results in `out` put into a tree; submitter and division are the campaign's by default."""
    campaign = read_record(out / CAMPAIGN_FILE, CampaignRecord)
    report = load(out)
    return TreeAsked(
        out=out,
        submitter=submitter or campaign.submitter,
        model=campaign.model or model,
        readmes=measurement_readmes(out),
        command=campaign.command,
        commit=campaign.commit,
        division=Division.parse(division or campaign.division),
        extra_files={f"results/{system_folder(out)}/summary.html": summary_html(out, published=True)},
        server_command=wording.server_command(report.server, report.model.path),
        introduction=introduction,
        capsule=as_yaml(capsule_of_results(out)),
    )
