"""Prints what changed between two rules files, and which kept results get another verdict."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.results.endpoints.rules_changes import ExplainSettings, explain_rules

    i["state"].update(explain_rules(ExplainSettings.of(i["env"])))
    return {"return": 0}
