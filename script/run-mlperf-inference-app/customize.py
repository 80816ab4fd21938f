"""The entry: hands the settings and a way to run recipes to the campaign, and exports where the results are."""


def plan(i):
    from cm4vllm.campaign.entry import plan_job

    return {"return": 0, **plan_job(i["env"])}


def values(i):
    from cm4vllm.campaign.entry import input_values

    return {"return": 0, "values": input_values(i["env"])}


def preprocess(i):
    from cm4vllm.campaign.entry import command_line, run_job
    from cm4vllm.common.errors import CmError

    env = i["env"]

    def recipes(tags, extra):
        done = i["automation"].run({"tags": tags, "env": {**env, **extra}, "adr": i["input"].get("adr"), "quiet": True})
        if done["return"]:
            raise CmError.again(done["return"], done["error"])
        return {key: value for key, value in done["new_env"].items() if isinstance(value, str)}

    env.update(run_job(env, recipes, command_line(i["input"])))
    return {"return": 0}
