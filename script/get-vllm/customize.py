"""Chooses the vLLM for what was detected; the recipe install,vllm has it."""


def preprocess(i):
    from cm4vllm.common.settings import read_settings
    from cm4vllm.serving.choice import Choice, choose

    i["env"].update(choose(read_settings(Choice, i["env"])))
    return {"return": 0}
