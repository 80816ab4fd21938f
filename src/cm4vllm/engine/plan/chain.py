"""The chain of scripts below one, as the metas state it: which dependencies there may be, whatever their conditions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cm4vllm.common.errors import CmError, nearest
from cm4vllm.common.secrets.secret_names import is_secret_name
from cm4vllm.engine.format.dependency import PHASES, Dependency, Raw
from cm4vllm.engine.format.meta import Layer, ScriptMeta
from cm4vllm.engine.format.meta_shapes import Place
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.format.variations import are_defined
from cm4vllm.engine.plan.recipe_code import code_of, runs_scripts, unread_words
from cm4vllm.engine.run.request import Request, parse_tags
from cm4vllm.engine.run.script_selection import choice_note, select


def plain_tags(dependency: Dependency) -> list[str]:
    """Return the tags that are known without a run."""
    return [tag for tag in dependency.tags if "<<<" not in tag and "#" not in tag]


def layers_of(script: ScriptMeta) -> Iterator[tuple[Place, Raw, Layer]]:
    """Yield the parts of a meta that may have dependencies: the script itself, its variations, its versions.

    Each comes with its place in the meta and as it was read.
    """
    yield (), script.raw, script.layer
    for kind, parts in (("variations", script.variations), ("versions", script.versions)):
        for name, raw in parts.items():
            yield (kind, name), raw, Layer.of(raw)


def dependencies_of(script: ScriptMeta) -> Iterator[tuple[Place, Layer, str, int, Dependency]]:
    """Yield all dependencies of a script with their layer, phase and number."""
    for place, _, layer in layers_of(script):
        for phase in PHASES:
            for number, dependency in enumerate(layer.deps[phase]):
                yield place, layer, phase, number, dependency


class Chain:
    """The scripts of a catalogue, by who depends on whom."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._found: dict[tuple[str, ...], list[ScriptMeta]] = {}

    def answering(self, words: Sequence[str]) -> list[ScriptMeta]:
        """Return the scripts that have the script tags among these words; none where there are no such tags."""
        try:
            tags, excluded, *_ = parse_tags(words)
        except CmError:
            return []
        if tags not in self._found:
            self._found[tags] = self.catalogue.with_tags(tags) if tags else []
        return [script for script in self._found[tags] if not set(excluded) & set(script.tags)]

    def _possible_scripts(self, script: ScriptMeta, words: Sequence[str]) -> list[ScriptMeta]:
        """Return the scripts that a dependency of a script may mean: of several, those of its own repository."""
        scripts = self.answering(words)
        own = [other for other in scripts if other.repo == script.repo and are_defined(other, parse_tags(words)[2])]
        return own or scripts

    def below(self, scripts: Iterable[ScriptMeta]) -> list[ScriptMeta]:
        """Return these scripts and all that they depend on, at any depth."""
        seen: dict[str, ScriptMeta] = {}
        waiting = list(scripts)
        while waiting:
            script = waiting.pop()
            if script.folder not in seen:
                seen[script.folder] = script
                for *_, dependency in dependencies_of(script):
                    waiting += self._possible_scripts(script, plain_tags(dependency))
        return list(seen.values())

    def names_below(self, scripts: Iterable[ScriptMeta]) -> frozenset[str] | None:
        """Return the names of all dependencies that an adr of these scripts can reach.

        None where it is not known, because code in between runs further scripts.
        """
        below = self.below(scripts)
        if any(runs_scripts(code_of(script)) for script in below):
            return None
        return frozenset(
            name for script in below for *_, dependency in dependencies_of(script) for name in dependency.names
        )


def warnings_of(catalogue: Catalogue, request: Request, near: str) -> list[str]:
    """Return a line for each name of the request's adr and each of its environment keys that has no effect.

    And one where scripts of several repositories may be meant. Raises what `select` does.
    """
    script = select(catalogue, request, near)
    lines = choice_note(catalogue, request, near)
    if request.adr:
        lines += _unmatched_names(catalogue, request, script)
    if request.explicit:
        lines += _unread_keys(catalogue, request, script)
    return lines


def _unmatched_names(catalogue: Catalogue, request: Request, script: ScriptMeta) -> list[str]:
    """Return a warning for each name of the request's adr that no dependency below its script has.

    None where the script's own code runs further scripts: it knows their names.
    """
    names = Chain(catalogue).names_below([script])
    unmatched = dict.fromkeys(
        amendment.name for amendment in request.adr if names is not None and amendment.name not in names
    )
    return [
        f"WARNING: --adr.{name} has no effect: no dependency of {script.title()} has that name; "
        f"{nearest(name, names or ()) or 'none has a name'}"
        for name in unmatched
    ]


def _unread_keys(catalogue: Catalogue, request: Request, script: ScriptMeta) -> list[str]:
    """Return a warning for each environment key of the command line that nothing reads.

    None where a shell file is below the script: all keys reach it, and the programs that it starts. Secrets reach every
    program, too.
    """
    given = [key for key in sorted(request.explicit) if not is_secret_name(key)]
    chain = Chain(catalogue)
    below = chain.below([script])
    if any(runs_scripts(code_of(other)) for other in below):
        below = chain.below([*below, *(other for other in catalogue.all() if other.repo == script.repo)])
    folders = [other.path for other in below]
    if not given or any(any(folder.glob("*.sh")) for folder in folders):
        return []
    unread = unread_words(given, folders, with_package=any("cm4vllm" in code_of(other) for other in below))
    keys = {key: f"--{flag}" for flag, key in script.input_mapping.items()}
    hints = {key: nearest(key, keys, f"its inputs: cm show script {script.alias}") for key in unread}
    return [
        f"WARNING: --env.{key} has no effect: nothing below {script.title()} reads it; {hints[key]}; a variable that a "
        f"program reads is set before the command: {key}=... cm run script ..."
        for key in unread
    ]


def reach(catalogue: Catalogue, tags: Any) -> Mapping[str, Any]:
    """Return the targets of `--adr` in the scripts with these tags.

    `inputs` has the environment key of each flag that they take; `names` those of the dependencies below them.
    """
    chain = Chain(catalogue)
    scripts = chain.answering(list(parse_tags(tags)[0]))
    inputs = {flag: key for script in scripts for flag, key in script.input_mapping.items()}
    return {"inputs": inputs, "names": sorted(chain.names_below(scripts) or ())}
