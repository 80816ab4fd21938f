"""From tags to the one script that is meant, or to an error that names the nearest one."""

from __future__ import annotations

import os

from cm4vllm.engine.format.catalogue import Catalogue
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.variations import known
from cm4vllm.engine.run.request import Request

__all__ = ["candidates", "select"]


def select(catalogue: Catalogue, request: Request, near: str) -> ScriptMeta:
    """Return the script that a request means: of several, one in the folder `near`, then the first by (sort, path).

    `near` holds the scripts beside the one that asks: a recipe is made for those of its own repository.
    Raises NotFoundError when no script has the tags, UsageError when none of those that have them has the variations.
    """
    scripts = candidates(catalogue, request)
    fitting = [script for script in scripts if known(script, request.variations)]
    if fitting:
        return next((script for script in fitting if os.path.dirname(script.folder) == near), fitting[0])
    from cm4vllm.engine.run.hints import no_variation

    raise no_variation(scripts, request)


def candidates(catalogue: Catalogue, request: Request) -> list[ScriptMeta]:
    """Return the scripts that match a request without regard to variations, in order of preference."""
    found = catalogue.named(request.name, request.repo) if request.name else catalogue.with_tags(request.tags)
    scripts = [script for script in found
               if set(request.tags) <= set(script.tags) and not set(request.excluded_tags) & set(script.tags)]
    if not scripts:
        from cm4vllm.engine.run.hints import no_script

        raise no_script(catalogue, request)
    return sorted(scripts, key=lambda script: (script.sort, script.folder))
