"""Chooses the vLLM for what was detected; the recipe install,vllm has it."""


def preprocess(i):
    from cm4vllm.common.settings import read_settings
    from cm4vllm.serving.choice import Choice, chosen_variant, system_vllm

    env = i["env"]
    choice = read_settings(Choice, env)
    env["CM_VLLM_VARIANT"] = chosen_variant(choice)
    if env["CM_VLLM_VARIANT"] == "system":
        found = system_vllm(choice.system_python)
        env["CM_VLLM_SYSTEM_PYTHON"], env["CM_VLLM_SYSTEM_VERSION"] = found.python, found.version
    return {"return": 0}
