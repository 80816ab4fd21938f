"""Provides nltk's sentence model, once and of one version."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.accuracy.sentences import given_model
    from cm4vllm.common.files import given_path

    if given := i["env"].get("CM_NLTK_DATA_SOURCE"):
        given_model(given_path(given))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.accuracy.sentences import MODEL, install_model
    from cm4vllm.common.files import given_path

    given = i["env"].get("CM_NLTK_DATA_SOURCE")
    folder = install_model(Path.cwd() / "nltk_data", given_path(given) if given else None)
    i["env"]["CM_NLTK_DATA"] = i["env"]["CM_GET_DEPENDENT_CACHED_PATH"] = str(folder)
    return {"return": 0, "version": MODEL.digest[:12]}
