"""Checks a submission tree and prints everything that is wrong in it."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.results.check_command.tree_check import CheckInputs

    i["state"].update(CheckInputs.of(i["env"]).report())
    return {"return": 0}
