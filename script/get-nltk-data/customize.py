"""Provides nltk's sentence model, once and of one version."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.accuracy.sentences import SentenceInputs, given_model

    if given := SentenceInputs.of(i["env"]).given:
        given_model(given)
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.accuracy.sentences import MODEL, SentenceInputs, install_model

    folder = install_model(Path.cwd() / "nltk_data", SentenceInputs.of(i["env"]).given)
    i["env"]["CM_NLTK_DATA"] = i["env"]["CM_GET_DEPENDENT_CACHED_PATH"] = str(folder)
    return {"return": 0, "version": MODEL.digest[:12]}
