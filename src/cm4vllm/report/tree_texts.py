"""The files of a results folder that go into a submission tree: its records, and the pages made from them."""

from __future__ import annotations

from pathlib import Path

from cm4vllm.common.records import read_record
from cm4vllm.report import formatting
from cm4vllm.report.measurement_readme import measurement_readmes
from cm4vllm.report.report_contents import load
from cm4vllm.report.summary import render
from cm4vllm.results.campaign_record import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.rules import Division
from cm4vllm.submission.capsule.capsules_at_path import capsule_of_results
from cm4vllm.submission.capsule.rerun_file import as_yaml
from cm4vllm.submission.tree import TreeAsked

__all__ = ["tree_asked"]


def tree_asked(
    out: Path, *, submitter: str = "", division: str = "", model: str = "", introduction: str = ""
) -> TreeAsked:
    """Return the inputs of a tree from the results in `out`; submitter and division are the campaign's by default."""
    campaign = read_record(out / CAMPAIGN_FILE, CampaignRecord)
    report = load(out)
    return TreeAsked(
        out=out,
        submitter=submitter or campaign.submitter,
        model=campaign.model or model,
        readmes=measurement_readmes(report),
        command=campaign.command,
        commit=campaign.commit,
        division=Division.parse(division or campaign.division),
        page=render(report, published=True),
        server_command=formatting.server_command(report.server, report.model.path),
        introduction=introduction,
        capsule=as_yaml(capsule_of_results(out)),
    )
