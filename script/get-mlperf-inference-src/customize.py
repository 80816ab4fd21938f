"""Finds or fetches the sources of the official submission checker."""

from pathlib import Path


def preprocess(i):
    from cm4vllm.submission.source import find_source

    env = i["env"]
    given = env.get("CM_MLPERF_INFERENCE_SOURCE_DIR", "")
    if given:  # a path as the user means it: from where cm was started, not from the cache entry
        given = str(Path(env.get("CM_TMP_CURRENT_PATH", ""), Path(given).expanduser()))
    source = find_source(given, Path.cwd())
    env["CM_MLPERF_INFERENCE_SOURCE"] = str(source.path)
    env["CM_MLPERF_INFERENCE_SOURCE_COMMIT"] = source.commit
    env["CM_GET_DEPENDENT_CACHED_PATH"] = str(source.path)
    return {"return": 0, "version": source.commit[:12]}
