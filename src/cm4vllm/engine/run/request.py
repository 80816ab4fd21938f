"""A request: tags, flags and environment of one run, the script that is meant, and what is decided before it runs.

Where no script is meant, the error names the nearest one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cm4vllm.common.errors import NotFoundError, UsageError, nearest
from cm4vllm.engine.format.dependency import Amendment, amendments_of, split_tags
from cm4vllm.engine.format.meta import Layer, ScriptMeta
from cm4vllm.engine.format.script_catalogue import Catalogue, Summary
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.variations import Resolution, are_defined, as_typed, resolve, without_replaced
from cm4vllm.engine.format.versions import ANY, Wanted
from cm4vllm.engine.run.flags import check_flags, flag, require_flags, require_joined_values, unknown_flags


def parse_tags(tags: Any) -> tuple[tuple[str, ...], ...]:
    """Split tags into script tags, excluded script tags, variations and excluded variations.

    Raises UsageError for one that is both asked for and excluded.
    """
    kinds: tuple[list[str], list[str], list[str], list[str]] = ([], [], [], [])
    for tag in split_tags(tags):
        for prefix, kind in (("-_", 3), ("_-", 3), ("_", 2), ("-", 1), ("", 0)):
            if tag.startswith(prefix):
                kinds[kind].append(tag[len(prefix) :])
                break
    for wanted, excluded in ((kinds[0], kinds[1]), (kinds[2], kinds[3])):
        if both := set(wanted) & set(excluded):
            raise UsageError(f"{min(both)!r} is both asked for and excluded", remedy="remove one of the two")
    return tuple(tuple(kind) for kind in kinds)


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Request(Value):
    """One run of one script. `inputs` is all that was given, as given; `folder` is where it works unless cached.

    `explicit` names the environment keys that a person gave on the command line, `replacing` the variations that
    amendments have added, each of which replaces those of its group.
    """

    folder: str
    tags: tuple[str, ...] = ()
    excluded_tags: tuple[str, ...] = ()
    variations: tuple[str, ...] = ()
    excluded_variations: tuple[str, ...] = ()
    name: str = ""
    repo: str = ""
    env: Mapping[str, Any] = _NOTHING
    const: Mapping[str, Any] = _NOTHING
    state: Mapping[str, Any] = _NOTHING
    const_state: Mapping[str, Any] = _NOTHING
    adr: tuple[Amendment, ...] = ()
    ad: tuple[Amendment, ...] = ()
    wanted: Wanted = ANY
    extra_cache_tags: tuple[str, ...] = ()
    force_new_env_keys: tuple[str, ...] = ()
    explicit: frozenset[str] = frozenset()
    replacing: tuple[tuple[str, ...], ...] = ()
    inputs: Mapping[str, Any] = _NOTHING
    is_dependency: bool = False
    from_person: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any], folder: str, *, from_person: bool = False) -> Request:
        """Read the input dictionary of an action. Raises UsageError when it names no script."""
        if from_person:
            words = [str(word) for word in given.get("cmd") or ()]
            require_flags(words)
            require_joined_values(words)
            _require_one_name(given)
        tags, name, repo = _tags_or_name(given)
        if not isinstance(tags, (str, list, tuple, bool, type(None))):
            raise UsageError(f"{tags!r} are not tags", remedy="tags are words separated by commas, or a list of words")
        env = _mapping(given, "env")
        script_tags, excluded_tags, variations, excluded_variations = parse_tags(tags)
        if not script_tags and not name:
            raise UsageError(
                "which script?",
                cause="neither tags nor a name are given",
                remedy="for example: cm run script --tags=detect,os",
            )
        return cls(
            tags=script_tags,
            excluded_tags=excluded_tags,
            variations=variations,
            excluded_variations=excluded_variations,
            name=name,
            repo=repo,
            env=env,
            const=_mapping(given, "const"),
            state=_mapping(given, "state"),
            const_state=_mapping(given, "const_state"),
            adr=_amendments(given, "adr") + _amendments(given, "add_deps_recursive"),
            ad=_amendments(given, "ad") + _amendments(given, "add_deps"),
            wanted=Wanted.of(given),
            extra_cache_tags=split_tags(given.get("extra_cache_tags")),
            explicit=frozenset(env) if from_person else frozenset(),
            inputs=given,
            folder=folder,
            from_person=from_person,
        )

    def same_run(self, other: Request) -> bool:
        """Return True if a script does the same for both: all that it is asked for is equal, where it works aside."""
        return all(getattr(self, name) == getattr(other, name) for name in _MEANING)

    def title(self) -> str:
        """Return the request as its tags would be typed."""
        kinds = {"": self.tags, "-": self.excluded_tags, "_": self.variations, "-_": self.excluded_variations}
        return ",".join(sign + word for sign, words in kinds.items() for word in words) or self.name


def _amendments(given: Mapping[str, Any], key: str) -> tuple[Amendment, ...]:
    return amendments_of(_mapping(given, key), UsageError)


_MEANING = (
    "variations",
    "excluded_variations",
    "env",
    "const",
    "state",
    "const_state",
    "adr",
    "ad",
    "wanted",
    "extra_cache_tags",
)


def _tags_or_name(given: Mapping[str, Any]) -> tuple[Any, str, str]:
    """Return the tags that an action's input has, or the name of a script and of its repository."""
    tags, parsed, artifact = given.get("tags"), given.get("parsed_artifact"), str(given.get("artifact") or "")
    if " " in artifact.strip():
        return [*split_tags(tags), *artifact.split()], "", ""
    if isinstance(parsed, list) and parsed:
        return tags, parsed[0][1] or parsed[0][0], (parsed[1][1] or parsed[1][0]) if len(parsed) > 1 else ""
    return tags, artifact, ""


def _require_one_name(given: Mapping[str, Any]) -> None:
    """Raise UsageError for more words than the name of a script, which CM gives to no action."""
    more = [str(word) for word in given.get("artifacts") or ()]
    if more:
        raise UsageError(
            f"{' '.join(more)!r}: a command runs one script",
            cause=f"its name is {str(given.get('artifact'))!r}, and more words would have no effect",
            remedy='leave them out; several words that are tags stand in quotes, as "detect os"',
        )


def _mapping(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = given.get(key) or {}
    if not isinstance(value, Mapping):
        raise UsageError(f"--{key} needs a key, as in --{key}.KEY=value", cause=f"got {value!r}")
    return value


class Task(Value):
    """A script to run, immutable. `layers` are its meta, its variations in order, and the meta of its version."""

    request: Request
    script: ScriptMeta
    variations: Resolution
    wanted: Wanted
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, script: ScriptMeta, request: Request) -> Task:
        """Return the task of a request: the script with its variations and versions settled.

        Raises UsageError for impossible variations, and for unknown flags where the script is strict about its input;
        else these are `notes`.
        """
        notes = check_flags(script, request.inputs)
        variations = resolve(script, request.variations, request.excluded_variations)
        wanted = request.wanted.or_else(Wanted.from_environment(request.env)).or_else(script.wanted)
        # A value that a recipe passes on was not typed by a person.
        warnings = tuple(f"WARNING: {note}" for note in notes) if request.from_person else ()
        return cls(request, script, variations, wanted, (), warnings).of_version(wanted)

    def of_version(self, wanted: Wanted) -> Task:
        """Return this task for the version `wanted`; the part of the meta for that version is its last layer."""
        layers = (self.script.layer, *(variation.layer for variation in self.variations.layers))
        version = self.script.version(wanted.version)
        return self.but(wanted=wanted, layers=layers if version is None else (*layers, version))

    def with_default_version(self) -> Task:
        """Return this task with the default version where none was asked for: it counts only when nothing is cached."""
        default = next((layer.default_version for layer in reversed(self.layers) if layer.default_version), "")
        wanted = self.wanted.with_default(default)
        return self if wanted == self.wanted else self.of_version(wanted)

    @property
    def ad(self) -> tuple[Amendment, ...]:
        """Changes to dependencies of this script alone."""
        return tuple(amendment for layer in self.layers for amendment in layer.ad) + self.request.ad

    @property
    def adr(self) -> tuple[Amendment, ...]:
        """Changes that are passed down to all dependencies; those of the command line come last and win."""
        return tuple(amendment for layer in self.layers for amendment in layer.adr) + self.request.adr

    @property
    def script_name(self) -> str:
        """Return the name of the shell file that is asked for; empty for the usual one."""
        return next((layer.script_name for layer in reversed(self.layers) if layer.script_name), "")

    @property
    def new_env_keys(self) -> tuple[str, ...]:
        """The patterns of the keys that it returns: the caller's, where it forces them, or those of the layers."""
        return self.request.force_new_env_keys or tuple(key for layer in self.layers for key in layer.new_env_keys)

    @property
    def promised_env_keys(self) -> tuple[str, ...]:
        """The keys that it always returns, set to a value that is not false."""
        return tuple(key for layer in self.layers for key in layer.promised_env_keys)

    @property
    def is_cached(self) -> bool:
        """Return True if the cache keeps what the script makes."""
        inputs: Mapping[str, object] = self.request.inputs
        asked_not_to = flag(inputs, "skip_cache", "force_skip_cache")
        return (self.script.cache and not asked_not_to) or (self.script.can_force_cache and flag(inputs, "force_cache"))

    def title(self) -> str:
        """Return the script's own tags and the variations that are on, as they would be typed."""
        return ",".join((*self.script.tags, *(f"_{name}" for name in self.variations.names)))


def select(catalogue: Catalogue, request: Request, near: str) -> ScriptMeta:
    """Return the script that a request means: of several, one in the folder `near`, then the first by (sort, path).

    `near` holds the scripts beside the one that asks: a recipe is made for those of its own repository. A person's
    flags decide first: a script that knows all of them is meant before one that does not.
    Raises NotFoundError when no script has the tags, UsageError when none of those that have them has the variations,
    or when several share all tags of the request as those that mean none of them alone (`shared_tags` of a meta).
    """
    scripts = candidates(catalogue, request)
    fitting = [script for script in scripts if are_defined(script, request.variations)]
    if not fitting:
        raise no_variation(scripts, request)
    _require_choice(fitting, request)
    fitting.sort(key=lambda script: os.path.dirname(script.folder) != near)
    knowing = (s for s in fitting if not request.from_person or not unknown_flags(s, request.inputs))
    return next(knowing, fitting[0])


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
    named, wanted, excluded = request.name, set(request.tags), set(request.excluded_tags)
    every = catalogue.scripts_named(named, request.repo) if named else catalogue.with_tags(request.tags)
    scripts = [script for script in every if wanted <= set(script.tags) and not excluded & set(script.tags)]
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
    if having := [script for script in scripts if wanted <= set(script.tags)]:
        tag = next(tag for tag in excluded if tag in having[0].tags)
        return f"-{tag} excludes {_names(having)}"
    if unknown := sorted(tag for tag in wanted if not any(tag in script.tags for script in scripts)):
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
    if not best:
        return _LIST if scripts else "no repository with scripts is registered: cm add repo --path=<folder>"
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
