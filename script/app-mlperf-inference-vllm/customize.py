"""Makes one LoadGen run against a vLLM server."""


def preprocess(i):
    from cm4vllm.common.settings import read_settings
    from cm4vllm.loadgen.measurement import RunInputs, measure

    env = i["env"]
    _, path = measure(read_settings(RunInputs, env))
    env["CM_MLPERF_RUN_RECORD"] = str(path)
    return {"return": 0}
