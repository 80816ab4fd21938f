"""The entry: reads the user's settings, hands the campaign a way to run recipes, and exports where the results are."""


def preprocess(i):
    from cm4vllm.campaign.job import run
    from cm4vllm.campaign.preflight import absolute_paths, preflight
    from cm4vllm.campaign.settings import CampaignSettings, Job
    from cm4vllm.common.command_lines import stored_command
    from cm4vllm.common.errors import CmError
    from cm4vllm.common.progress import say
    from cm4vllm.common.settings import read_settings

    env = i["env"]
    env.update(absolute_paths(env))
    if "mlperf-implementation" in (i["input"].get("adr") or {}):
        say("note: --adr.mlperf-implementation: the built-in client replaces the old fork of the reference client")
    if env.get("CM_DATASET_FILE"):
        env["CM_DATASET_SOURCE"] = f"_path.{env['CM_DATASET_FILE']}"

    def recipes(tags, extra):
        done = i["automation"].run({"tags": tags, "env": {**env, **extra}, "adr": i["input"].get("adr"), "quiet": True})
        if done["return"]:
            raise CmError.again(done["return"], done["error"])
        return {key: value for key, value in done["new_env"].items() if isinstance(value, str)}

    job = Job.of(read_settings(CampaignSettings, env))
    preflight(env)
    words = i["input"].get("cmd") or [f"--tags={i['input'].get('tags', '')}"]
    run(job, recipes, stored_command(["cm", "run", "script", *words]))
    env["CM_MLPERF_RESULTS_DIR"] = str(job.out)
    env["CM_MLPERF_SUMMARY"] = str(job.out / "summary.html")
    return {"return": 0}
