"""The texts of a results folder that go into a submission tree: the README.md of each measurement, and other pages.

A README says what was run, on what, how to run it again, and the result.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from cm4vllm.common.files import text_of, typed_path, write_json
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.doubts import headroom as client_headroom
from cm4vllm.records.software import SCRIPTS_FILE, read_software
from cm4vllm.report.page_templates import environment
from cm4vllm.report.reproduction import (
    container_command,
    platform_rows,
    published_recipe,
    server_command,
    setup_lines,
    typed_command,
    versions,
)
from cm4vllm.report.summary import render
from cm4vllm.results.campaign_results import Report, load
from cm4vllm.results.judgement.campaign_verdict import missing
from cm4vllm.results.model import Result
from cm4vllm.rules import Division, Scenario
from cm4vllm.submission.capsule.capsules_at_path import capsule_of_results
from cm4vllm.submission.capsule.rerun_file import CAPSULE_FILE, as_yaml
from cm4vllm.submission.tree import TreeAsked, build_tree
from cm4vllm.submission.tree_inputs import TreeSettings, results_folders


def build_asked_tree(settings: TreeSettings, scripts: Mapping[str, Any]) -> Path:
    """Build the tree that is asked for, or add results to it; return its folder.

    `scripts` are CM's notes on the scripts of the run, kept with the first results. Raises SubmissionError, UsageError.
    """
    folders = results_folders(settings.results)
    if scripts:
        write_json(folders[0] / "system" / SCRIPTS_FILE, scripts)
    introduction = text_of(typed_path(settings.introduction)) if settings.introduction else ""
    asked = [
        tree_asked(
            out,
            submitter=settings.submitter,
            division=settings.division,
            model=settings.model,
            introduction=introduction,
        )
        for out in folders
    ]
    for results in asked:
        write_noted(results.out / CAPSULE_FILE, results.capsule)
    tree = build_tree(*asked, tree=Path(settings.tree).absolute(), add=settings.add)
    say(f"submission tree: {tree}")
    return tree


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
        server_command=server_command(report.server, report.model.path),
        introduction=introduction,
        capsule=as_yaml(capsule_of_results(out)),
    )


def measurement_readmes(report: Report) -> dict[Scenario, str]:
    """Return the README of each measured scenario, as Markdown."""
    return {Scenario(measurement.scenario): _text(report, measurement) for measurement in report.results}


def _text(report: Report, measurement: Result) -> str:
    """Return the README of a result in the submission tree."""
    run, software = measurement.run, read_software(report.out)
    text = _template().render(
        setup="\n".join(setup_lines(report, software)),
        platform=platform_rows(software),
        software=software,
        recipe=published_recipe,
        report=report,
        m=measurement,
        run=run,
        settings=run.settings,
        server=run.settings.server,
        command=typed_command(report.campaign.command, report.server) if report.campaign else "",
        server_command=server_command(run.settings.server, run.settings.model.path),
        container_command=container_command(run.settings.server, run.settings.model.path),
        versions=versions(report, run),
        missing=missing(report),
        client_headroom=client_headroom,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@cache
def _template() -> jinja2.Template:
    # Markdown needs its own escaping, which the filters below do; HTML's would show as entities in code.
    templates = environment(autoescape=False)
    templates.filters.update(code=code, plain=escape, block=block)
    return templates.get_template("measurement.md.j2")


def code(value: Any) -> str:
    """Return a value as a code span that nothing in it can close, fit for a table's cell."""
    text = " ".join(str(value).split()).replace("|", "\\|")
    fence = "`" * (1 + max((len(ticks) for ticks in re.findall("`+", text)), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}" if text else ""


def escape(value: Any) -> str:
    """Return a text with everything escaped that Markdown or HTML would take for markup."""
    return re.sub(
        r"([\\`*_\[\]|])",
        r"\\\1",
        " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
    )


def block(value: Any) -> str:
    """Return a text as a fenced block of shell that nothing in it can close."""
    text = str(value)
    fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall("`+", text)), default=0))
    return f"{fence}bash\n{text}\n{fence}"
