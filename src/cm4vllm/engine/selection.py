"""From tags to the one script that is meant, or to an error that names the nearest one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from cm4vllm.common.errors import NotFoundError, UsageError, nearest
from cm4vllm.engine.catalogue import Catalogue
from cm4vllm.engine.meta import ScriptMeta
from cm4vllm.engine.request import Request
from cm4vllm.engine.variations import known

__all__ = ["candidates", "select"]


def select(catalogue: Catalogue, request: Request, near: Path) -> ScriptMeta:
    """Return the script that a request means: of several, one in the folder `near`, then the first by (sort, path).

    `near` holds the scripts beside the one that asks: a recipe is made for those of its own repository.
    Raises NotFoundError when no script has the tags, UsageError when none of those that have them has the variations.
    """
    scripts = candidates(catalogue, request)
    fitting = [script for script in scripts if known(script, request.variations)]
    if fitting:
        return next((script for script in fitting if script.path.parent == near), fitting[0])
    known_names = {name for script in scripts for name in script.variations}
    missing = next((name for name in request.variations if not any(known(script, [name]) for script in scripts)),
                   request.variations[0])
    raise UsageError(
        f"{scripts[0].title()} has no variation {missing!r}", cause=f"asked for as _{missing} in {request.title()}",
        remedy=nearest(missing, known_names) or "it has no variations")


def candidates(catalogue: Catalogue, request: Request) -> list[ScriptMeta]:
    """Return the scripts that match a request without regard to variations, in order of preference."""
    found = catalogue.named(request.name, request.repo) if request.name else catalogue.with_tags(request.tags)
    scripts = [script for script in found
               if set(request.tags) <= set(script.tags) and not set(request.excluded_tags) & set(script.tags)]
    if not scripts:
        raise _nothing_found(catalogue, request)
    return sorted(scripts, key=lambda script: (script.sort, str(script.path)))


def _nothing_found(catalogue: Catalogue, request: Request) -> NotFoundError:
    if request.name:
        return NotFoundError(f"no scripts were found with the name {request.name!r}",
                             remedy=nearest(request.name, (script.alias for script in catalogue.all())))
    wanted = set(request.tags)
    every = catalogue.all()
    unknown = sorted(wanted - {tag for script in every for tag in script.tags})
    return NotFoundError(
        f"no scripts were found with the tags {','.join(request.tags)}",
        cause=f"no script has the tag {unknown[0]!r}" if unknown else "no script has all of these tags",
        remedy=_hint(wanted, unknown, every))


def _hint(wanted: Collection[str], unknown: list[str], scripts: list[ScriptMeta]) -> str:
    """Name the script with the most of the tags, or the tag nearest to an unknown one."""
    tags = {tag for script in scripts for tag in script.tags}
    corrected = set(wanted)
    for tag in unknown:
        close = nearest(tag, tags)
        if close.startswith("did you mean"):
            corrected = corrected - {tag} | {close.split("'")[1]}
    best = max(scripts, key=lambda script: (len(corrected & set(script.tags)), -len(script.tags)), default=None)
    if best is None:
        return "no repository with scripts is registered: cm add repo --path=<folder of a repository>"
    if not corrected & set(best.tags):
        return "list them all with: cm find script"
    shown = [tag for tag in best.tags if tag in corrected] if corrected <= set(best.tags) else list(best.tags)
    return f"did you mean {','.join(shown)} ({best.alias})?"
