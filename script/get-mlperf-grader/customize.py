"""Makes a grader ready in the cache entry."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.accuracy.graders.providing import provide
    from cm4vllm.accuracy.graders.records import GRADER_FILE

    env = i["env"]
    given = env.get("CM_MLPERF_GRADER_SOURCE_DIR")
    at_hand = Path(given).expanduser().absolute() if given else None
    name = env["CM_MLPERF_GRADER_NAME"]
    problems = env.get("CM_LIVECODEBENCH_DIR")
    record = provide(
        name,
        Path.cwd(),
        Path(i["artifact"].path),
        at_hand,
        Path(problems).expanduser().absolute() if problems else None,
    )
    env[f"CM_MLPERF_GRADER_{name.upper()}"] = str(Path.cwd() / GRADER_FILE)
    return {"return": 0, "version": next(iter(reversed(record.commits.values())))[:12]}
