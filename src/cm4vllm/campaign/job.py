"""A job of MLPerf Inference: its schedule is executed; then the report is written, and the table printed."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import metadata

from cm4vllm import __version__
from cm4vllm.campaign.execution import Execution, run_schedule
from cm4vllm.campaign.planning.minutes import Minutes
from cm4vllm.campaign.planning.schedule import environment_of, schedule
from cm4vllm.campaign.planning.step_environment import NOTHING, Names
from cm4vllm.campaign.planning.steps import Recipes
from cm4vllm.campaign.search.settings_job import SettingsExports
from cm4vllm.campaign.settings import Job
from cm4vllm.common.errors import CmError, InvalidResult
from cm4vllm.common.programs.own_program import commit_of_this_repository
from cm4vllm.common.progress import say, warn
from cm4vllm.common.records import write_record
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.report.explorer import published_index
from cm4vllm.report.final_table import final_table
from cm4vllm.report.summary import write_summary
from cm4vllm.results.campaign_results import Report, load
from cm4vllm.results.judgement.published_rank import places_of
from cm4vllm.submission.published_program import program_digest


def run(job: Job, recipes: Recipes, command: str, typed: Mapping[str, str] = NOTHING) -> Report:
    """Execute the job's schedule and print its table. Raises CmError for what failed, after all that can be shown.

    `command` is the line that started it, for the records; `typed` is what the user set by --env.
    """
    steps = schedule(job)
    return run_schedule(
        job,
        steps,
        environment_of(job, typed),
        recipes,
        finish=partial(_report, job),
        record=partial(_record_campaign, job, command),
        minutes=Minutes(job, steps) if job.rehearsal else None,
    )


def _record_campaign(job: Job, command: str, execution: Execution) -> bool:
    """Write the settings that the command resolved to, once system and model are known; say whether they are."""
    names, search = execution.environment.read(Names), execution.environment.read(SettingsExports)
    if not (names.system and names.model):
        return False
    write_record(
        job.out / CAMPAIGN_FILE,
        CampaignRecord(
            command=command,
            cm_version=metadata.version("cmind"),
            cm4vllm_version=__version__,
            commit=commit_of_this_repository(),
            program_sha256=program_digest(),
            division=job.division,
            submitter=job.settings.submitter,
            round=job.round.name,
            benchmark=job.benchmark.name,
            execution_mode=job.execution_mode,
            started_at=execution.started,
            system=names.system,
            model=names.model,
            simulated=job.settings.rehearse,
            searched_options=search.chosen,
            search_evidence=search.evidence,
        ),
    )
    return True


def _report(job: Job, execution: Execution) -> Report:
    """Write the pages and print the table; then raise the error of the checkers, or of the result itself."""
    if job.no_tree:
        say(f"no submission tree: {job.no_tree}")
    report = _with_published_places(job, load(job.out))
    write_summary(report)
    print(final_table(report), flush=True)
    if execution.failure is not None:
        raise execution.failure
    if report.invalid_results and not job.rehearsal:
        raise InvalidResult(
            "the rules call this result invalid",
            cause="\n".join(report.invalid_results),
            remedy="the report names the limit that was missed; a lower --server_target_qps, a higher "
            "--offline_target_qps or a lower --singlestream_target_latency usually helps",
        )
    return report


def _with_published_places(job: Job, report: Report) -> Report:
    """Add to the report the places of its results among published ones, where the job names these.

    The results stand without them: published results that can no longer be read are warned of.
    """
    if not job.settings.published_results:
        return report
    try:
        index = published_index(job.settings.published_results)
    except (CmError, OSError) as error:
        warn(f"the report does not show the places among published results: {error}")
        return report
    return replace(report, places=tuple(places_of(report.submission, index)))
