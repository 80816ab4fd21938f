"""Compares two capsules and their results."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    from cm4vllm.common.errors import UsageError
    from cm4vllm.submission.capsule.comparison import ACCURACY_TOLERANCE, compare, judge, report
    from cm4vllm.submission.capsule.replay import capsule_at

    env = i["env"]
    given = [env.get(key, "") for key in ("CM_MLPERF_CAPSULE", "CM_MLPERF_OTHER_CAPSULE")]
    if not all(given):
        raise UsageError("two results are compared", remedy="give both: --capsule=FILE --other=FILE")
    chosen = env.get("CM_MLPERF_CAPSULE_OF", "")
    first, second = (capsule_at(Path(one).absolute(), chosen) for one in given)
    rows = compare(first, second, float(env.get("CM_MLPERF_VERIFY_ACCURACY") or ACCURACY_TOLERANCE))
    report(rows)
    i["state"]["compared"] = msgspec.to_builtins(rows)
    judge(rows)
    return {"return": 0}
