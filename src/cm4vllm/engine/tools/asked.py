"""Which scripts an action is about: all, those of a repository, those with tags, or one by its name."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from cm4vllm.common.errors import NotFoundError
from cm4vllm.engine.format.catalogue import Catalogue
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.variations import known
from cm4vllm.engine.run.request import Request
from cm4vllm.engine.run.selection import candidates

__all__ = ["asked_scripts"]


def asked_scripts(catalogue: Catalogue, i: Mapping[str, Any]) -> list[ScriptMeta]:
    """Return the scripts that an action's input names: `--tags=a,b`, `alias`, `repo:alias`, `ali*`, or tags as words.

    Without any, all scripts. Raises NotFoundError when nothing matches.
    """
    artifact = str(i.get("artifact") or "").strip()
    if not artifact and not i.get("tags"):
        return catalogue.all()
    if i.get("tags") or " " in artifact:
        return _fitting(catalogue, Request.of(i, ""))
    repo, _, name = artifact.rpartition(":")
    if "*" in name:
        found = [script for script in catalogue.all() if fnmatch.fnmatchcase(script.alias, name)
                 and (not repo or script.repo == repo)]
        if not found:
            raise NotFoundError(f"no scripts were found with the name {artifact!r}")
        return found
    try:
        return _fitting(catalogue, Request.of(i, ""))
    except NotFoundError:
        if repo:
            raise
        return _fitting(catalogue, Request.of({"tags": name}, ""))


def _fitting(catalogue: Catalogue, request: Request) -> list[ScriptMeta]:
    scripts = candidates(catalogue, request)
    return [script for script in scripts if known(script, request.variations)] or scripts
