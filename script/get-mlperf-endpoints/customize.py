"""Installs the reference client of MLPerf Endpoints, or the official checker, into the cache entry."""

from pathlib import Path
from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.endpoints.installation import InstallationSettings, require_installable

    return {"return": 0, "notes": require_installable(InstallationSettings.of(i["env"]))}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.endpoints.installation import InstallationSettings, provide

    settings = InstallationSettings.of(i["env"])
    record, version = provide(settings, Path.cwd(), Path(i["artifact"].path))
    i["env"][f"CM_MLPERF_ENDPOINTS_{settings.part.upper()}"] = str(record)
    return {"return": 0, "version": version}
