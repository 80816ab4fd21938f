"""Builds the submission tree from a campaign's records, with the texts of the report."""

from pathlib import Path


def preprocess(i):
    from cm4vllm.common.files import write_json
    from cm4vllm.common.progress import say
    from cm4vllm.common.records import read_record
    from cm4vllm.report.readme import measurement_readmes
    from cm4vllm.report.summary import summary_html
    from cm4vllm.results.records import CAMPAIGN_FILE, CampaignRecord
    from cm4vllm.rules import Division
    from cm4vllm.submission.software import SCRIPTS_FILE, scripts_that_ran
    from cm4vllm.submission.tree import TreeAsked, build_tree, system_folder

    env = i["env"]
    out = Path(env.get("CM_MLPERF_RESULTS_DIR", "")).absolute()
    campaign = read_record(out / CAMPAIGN_FILE, CampaignRecord)
    if scripts := scripts_that_ran(i["run_state"]["version_info"], "app-mlperf-inference-vllm"):
        write_json(out / "system" / SCRIPTS_FILE, scripts)
    tree = build_tree(TreeAsked(
        out=out,
        submitter=env.get("CM_MLPERF_SUBMITTER") or campaign.submitter,
        model=campaign.model or env.get("CM_ML_MODEL_NAME", ""),
        readmes=measurement_readmes(out),
        command=campaign.command,
        commit=campaign.commit,
        division=Division.parse(env.get("CM_MLPERF_SUBMISSION_DIVISION") or campaign.division),
        extra_files={f"results/{system_folder(out)}/summary.html": summary_html(out, published=True)},
    ))
    say(f"submission tree: {tree}")
    env["CM_MLPERF_INFERENCE_SUBMISSION_DIR"] = str(tree)
    return {"return": 0}
