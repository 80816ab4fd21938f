"""Installs the reference client of MLPerf Endpoints, or the official checker, into the cache entry."""

from pathlib import Path
from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.endpoints.installation import require_python

    require_python(i["env"])
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.endpoints.installation import provide

    record, version = provide(i["env"], Path.cwd(), Path(i["artifact"].path))
    i["env"][f"CM_MLPERF_ENDPOINTS_{i['env']['CM_MLPERF_ENDPOINTS_PART'].upper()}"] = str(record)
    return {"return": 0, "version": version}
