"""From tags to the one script that is meant, or to an error that names the nearest one."""

import os
from collections.abc import Collection, Sequence

from cm4vllm.common.errors import NotFoundError, UsageError, nearest
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.meta_store import Summary
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.format.variations import are_defined, as_typed, without_replaced
from cm4vllm.engine.run.flags import unknown_flags
from cm4vllm.engine.run.request import Request


def select(catalogue: Catalogue, request: Request, near: str) -> ScriptMeta:
    """Return the script that a request means: of several, one in the folder `near`, then the first by (sort, path).

    `near` holds the scripts beside the one that asks: a recipe is made for those of its own repository. A person's
    flags decide first: a script that knows all of them is meant before one that does not.
    Raises NotFoundError when no script has the tags, UsageError when none of those that have them has the variations,
    or when several share all tags of the request as those that mean none of them alone (`shared_tags` of a meta).
    """
    scripts = candidates(catalogue, request)
    fitting = [script for script in scripts if are_defined(script, request.variations)]
    if fitting:
        _require_choice(fitting, request)
        fitting.sort(key=lambda script: os.path.dirname(script.folder) != near)
        knowing = (s for s in fitting if not request.from_person or not unknown_flags(s, request.inputs))
        return next(knowing, fitting[0])
    raise no_variation(scripts, request)


def choice_note(catalogue: Catalogue, request: Request, near: str) -> list[str]:
    """Return a line on the repository whose script is run, where scripts of several fit a request.

    Raises what `select` does.
    """
    scripts = [] if request.name else candidates(catalogue, request)
    if len({script.repo for script in scripts}) < _SEVERAL:
        return []
    chosen = select(catalogue, request, near)
    own = [script for script in scripts if os.path.dirname(script.folder) == near and script.repo != chosen.repo]
    others = [script for script in scripts if script.repo != chosen.repo and not _unknown_to(script, request)]
    if not (rivals := own or others):
        return []
    rival = min(rivals, key=lambda script: script.alias != chosen.alias)
    lacking = _unknown_to(rival, request)
    reason = f", because {rival.alias} of {rival.repo} has no {' and no '.join(lacking)}" if lacking else ""
    words = ",".join(f"_{name}" for name in request.variations if are_defined(rival, [name]))
    command = f"cm run script {rival.repo}:{rival.alias}" + (f" --tags={words}" if words else "")
    return [f"note: {chosen.alias} of {chosen.repo} is run{reason}; that of {rival.repo}: {command}"]


#: From this number of repositories on there is a choice.
_SEVERAL = 2


def _unknown_to(script: ScriptMeta, request: Request) -> list[str]:
    """Return what a script does not know of a request's variations and flags, in words."""
    variations = [f"variation _{name}" for name in request.variations if not are_defined(script, [name])]
    return variations + [f"input --{flag}" for flag in unknown_flags(script, request.inputs)]


def _require_choice(scripts: Sequence[ScriptMeta], request: Request) -> None:
    """Raise UsageError if the tags of a request are common to several scripts, and single out none of them."""
    sharing = [script for script in scripts if request.tags and set(request.tags) <= set(script.shared_tags)]
    if len(sharing) > 1 and scripts[0] in sharing:
        words = ",".join(f"_{name}" for name in request.variations)
        commands = [f"--tags={','.join(filter(None, (script.title(), words)))}" for script in sharing]
        raise UsageError(
            f"--tags={request.title()} may mean {' or '.join(script.title() for script in sharing)}",
            cause="; ".join(f"{script.title()}: {script.purpose}" for script in sharing),
            remedy=f"run one of them: {' or '.join(f'cm run script {command}' for command in commands)}",
        )


def without_replaced_variations(catalogue: Catalogue, request: Request, near: str) -> Request:
    """Return a request without the variations of its entry that amendments have replaced. Raises what `select` does."""
    if not request.replacing:
        return request
    script = select(catalogue, request, near)
    return request.but(variations=without_replaced(script, request.variations, request.replacing), replacing=())


def candidates(catalogue: Catalogue, request: Request) -> list[ScriptMeta]:
    """Return the scripts that match a request without regard to variations, in order of preference."""
    matching = (
        catalogue.scripts_named(request.name, request.repo) if request.name else catalogue.with_tags(request.tags)
    )
    scripts = [
        script
        for script in matching
        if set(request.tags) <= set(script.tags) and not set(request.excluded_tags) & set(script.tags)
    ]
    if not scripts:
        raise no_script(catalogue, request)
    return sorted(scripts, key=lambda script: (script.sort, script.folder))


Named = Summary | ScriptMeta
_LIST = "list them all with: cm find script"
#: The number of near scripts that are named.
_NAMED = 3


def no_script(catalogue: Catalogue, request: Request) -> NotFoundError:
    """Return the error for a request that no script matches: which tag prevents the match, and what is similar."""
    if request.name:
        return NotFoundError(
            f"no scripts were found with the name {request.name!r}",
            remedy=nearest(request.name, (script.alias for script in catalogue.summaries), _LIST),
        )
    every = catalogue.summaries
    wanted, excluded = set(request.tags), set(request.excluded_tags)
    return NotFoundError(
        f"no scripts were found with the tags {request.title()}",
        cause=_why_no_match(wanted, excluded, every),
        remedy=_nearest_script(wanted, excluded, every),
    )


def _why_no_match(wanted: set[str], excluded: set[str], scripts: Sequence[Named]) -> str:
    """Return why no script has the tags: an excluding tag, an unknown one, or a tag too many."""
    having = [script for script in scripts if wanted <= set(script.tags)]
    if having:
        tag = next(tag for tag in excluded if tag in having[0].tags)
        return f"-{tag} excludes {_names(having)}"
    unknown = sorted(tag for tag in wanted if not any(tag in script.tags for script in scripts))
    if unknown:
        return f"no script has the tag {unknown[0]!r}"
    for tag in sorted(wanted):
        if others := [script for script in scripts if wanted - {tag} <= set(script.tags)]:
            return f"no script has all tags; without {tag!r}, {_names(others)} matches"
    return "no script has all of these tags"


def _nearest_script(wanted: set[str], excluded: set[str], scripts: Sequence[Named]) -> str:
    """Return the remedy where no script matches: the script whose tags are nearest."""
    tags = {tag for script in scripts for tag in script.tags}
    hints = [nearest(tag, tags) for tag in wanted - tags]
    corrected = (wanted & tags) | {hint.split("'")[1] for hint in hints if hint.startswith("did you mean")}
    best = sorted(
        (script for script in scripts if corrected & set(script.tags) and not excluded & set(script.tags)),
        key=lambda script: (-len(corrected & set(script.tags)), len(script.tags), script.alias),
    )
    if not scripts:
        return "no repository with scripts is registered: cm add repo --path=<folder of a repository>"
    if not best:
        return _LIST
    shared = len(corrected & set(best[0].tags))
    near = [script for script in best if len(corrected & set(script.tags)) == shared][:_NAMED]
    return f"did you mean {' or '.join(f'{_tags(script, corrected)} ({script.alias})' for script in near)}?"


def _tags(script: Named, corrected: Collection[str]) -> str:
    if set(corrected) <= set(script.tags):
        return ",".join(tag for tag in script.tags if tag in corrected)
    return script.tags_help.strip().strip('"') or ",".join(script.tags)


def _names(scripts: Sequence[Named]) -> str:
    more = f" and {len(scripts) - _NAMED} more" if len(scripts) > _NAMED else ""
    return ", ".join(script.alias for script in scripts[:_NAMED]) + more


def no_variation(scripts: Sequence[ScriptMeta], request: Request) -> UsageError:
    """Return the error for scripts that have the tags, but not all the variations of a request."""
    best = max(scripts, key=lambda script: sum(are_defined(script, [name]) for name in request.variations))
    missing = next(name for name in request.variations if not are_defined(best, [name]))
    cause = f"asked for as _{missing} in {request.title()}"
    if elsewhere := [script for script in scripts if are_defined(script, [missing])]:
        cause += f"\n_{missing} is one of {_names(elsewhere)}, which does not have the other variations"
    return UsageError(
        f"{best.title()} has no variation {missing!r}",
        cause=cause,
        remedy=nearest(missing, as_typed(best.variations), f"list them with: cm show script {best.alias}")
        or "this script has no variations",
    )
