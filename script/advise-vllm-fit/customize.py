"""Finds how a model is best served on a machine, before anything is loaded."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.fit.advice import AdviceSettings, advice

    env = i["env"]
    fit = advice(AdviceSettings.of(env))
    env["CM_VLLM_FIT_TENSOR_PARALLEL"] = str(fit.tensor_parallel)
    env["CM_VLLM_FIT_PIPELINE_PARALLEL"] = str(fit.pipeline_parallel)
    env["CM_VLLM_FIT_DATA_PARALLEL"] = str(fit.data_parallel)
    env["CM_VLLM_FIT_KV_CACHE_TOKENS"] = str(fit.kv_tokens)
    env["CM_VLLM_FIT_MAX_NUM_SEQS"] = str(fit.max_num_seqs)
    return {"return": 0}
