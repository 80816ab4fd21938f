"""Fetches the sources of the official submission checker into the cache entry."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    if getattr(i["automation"], "engine", "") != "cm4vllm":
        from runpy import run_path

        return dict(run_path(str(Path(__file__).parents[1] / "another_engine.py"))["refusal"](i))
    from cm4vllm.submission.checker.source import fetch

    source = fetch(Path.cwd() / "inference")
    i["env"].update(source.env(), CM_GET_DEPENDENT_CACHED_PATH=str(source.path))
    return {"return": 0, "version": source.commit[:12]}
