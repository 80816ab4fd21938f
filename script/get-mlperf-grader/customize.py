"""Makes a grader ready in the cache entry."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.accuracy.graders.providing import provide
    from cm4vllm.accuracy.graders.records import GRADER_FILE

    env = i["env"]
    at_hand, problems = (
        Path(env[key]).expanduser().absolute() if env.get(key) else None
        for key in ("CM_MLPERF_GRADER_SOURCE_DIR", "CM_LIVECODEBENCH_DIR")
    )
    name = env["CM_MLPERF_GRADER_NAME"]
    record = provide(name, Path.cwd(), Path(i["artifact"].path), at_hand, problems)
    env[f"CM_MLPERF_GRADER_{name.upper()}"] = str(Path.cwd() / GRADER_FILE)
    return {"return": 0, "version": next(iter(reversed(record.commits.values())))[:12]}
