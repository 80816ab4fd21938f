"""Whether this engine runs a recipe. Recipes call it in preprocess; only the standard library is needed.

Another repository's script engine runs our recipes when that repository comes first in `repos.json` (cm4mlops is one).
It reads the same format, but neither calls cleanup hooks nor gives cached entries whole, so that servers would be left
behind. `script/get-generic-python-lib` is the first dependency of every recipe that needs the package, and holds the
same check without importing it: that one is met even where cm4vllm cannot be imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cm4vllm.common.errors import RecipeError

__all__ = ["require_our_engine"]


def require_our_engine(i: Mapping[str, Any]) -> None:
    """Raise RecipeError, with the command to use instead, unless this engine runs the hook that got `i`."""
    automation = i.get("automation")
    if getattr(automation, "engine", "") == "cm4vllm":
        return
    tags = (i.get("input") or {}).get("tags") or "..."
    raise RecipeError(
        "another script engine runs this recipe of cm4vllm",
        cause=f"{getattr(automation, 'path', 'unknown')} comes before cm4vllm in the order of CM's repositories",
        remedy=f"select ours: cm run cm4vllm:script --tags={tags}")
