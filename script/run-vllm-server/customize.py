"""Starts a vLLM server, or checks one that runs already."""


def preprocess(i):
    from cm4vllm.common.settings import read_settings
    from cm4vllm.serving.launch import LaunchSettings, launch

    env = i["env"]
    record, path = launch(read_settings(LaunchSettings, env), env)
    env["CM_VLLM_SERVER_ENDPOINT"] = record.endpoint
    env["CM_VLLM_SERVER_RECORD"] = str(path)
    return {"return": 0}


def postprocess(i):
    from cm4vllm.serving.launch import wait_in_foreground

    if i["env"].get("CM_VLLM_SERVER_BACKGROUND") != "yes":
        wait_in_foreground(i["env"]["CM_VLLM_SERVER_RECORD"])
    return {"return": 0}


def cleanup(i):
    from cm4vllm.serving.launch import end

    end(i["env"].get("CM_VLLM_SERVER_RECORD", ""))
    return {"return": 0}
