"""The refusal of a recipe of cm4vllm that another script engine runs: there the package cm4vllm may not be importable.

A recipe whose first dependency is not `get,generic-python-lib,_requirements` runs this file itself.
"""

from pathlib import Path
from typing import Any


def refusal(i: dict[str, Any]) -> dict[str, Any]:
    """Return the error that a hook of a recipe answers with, as CM expects it, with both remedies."""
    return {
        "return": 3,
        "error": (
            f"another script engine ({getattr(i['automation'], 'path', 'unknown')}) runs a recipe of cm4vllm\n"
            "  cause:  its repository comes before cm4vllm in the order of CM's repositories\n"
            "  remedy: give cm4vllm a CM home of its own: "
            f"export CM_REPOS=$HOME/cm4vllm-home; cm add repo --path={Path(__file__).resolve().parents[1]}\n"
            "          or have cm4vllm registered first, so that its engine runs the recipes of both: move its line to "
            "the top of repos.json in the CM home, then type: cm reindex repo\n"
            "          or select its engine for one command: cm run cm4vllm:script --tags=..."
        ),
    }
