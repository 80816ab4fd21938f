"""The chain of scripts below one: the dependencies that metas state, whatever their conditions, and the steps of code.

A recipe's own code states what it does by the hook `plan` of its customize.py: the keys that it sets, the scripts that
it runs.

    def plan(i):
        return {"return": 0, "env": {"CM_KEY": "value"}, "steps": [{"name": "model", "tags": "get,ml-model,_tiny"}]}

The hook gets `i["env"]`, the keys whose values are known before the run, and `i["input"]`, the flags. It changes
nothing on the machine, and raises what `preprocess` raises for the same input. What it returns is all that the recipe's
code changes: a key that it does not name keeps the value that it has. One that returns neither `env` nor `steps` only
refuses: what the code changes stays unknown.

`adr`, where it is returned, takes the place of the caller's for the steps and for what is below them. Further keys:

    brings     what the code brings onto the machine, in the form of a meta's `brings` and in their place
    takes      in words, how long the code takes
    elsewhere  True: the plan is for another machine, where nothing of this one's cache and packages counts

A step is a script that the code runs with `i["automation"].run`: `name`, `tags`, `env`, and

    names     the names by which `--adr` changes it, as `names` of a dependency
    unknown   the keys of its environment whose values only the run can give, each with where its value comes from
    only_if   in words, what decides whether it is run at all
    notes     further lines about it
    brings    what it brings onto the machine beyond what its own meta says, in the form of a meta's `brings`
    data      the step as its recipe has it, for programs
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cm4vllm
from cm4vllm.common.errors import CmError, RecipeError, nearest
from cm4vllm.common.secrets.secret_forms import is_secret_name
from cm4vllm.engine.format.dependency import PHASES, Dependency, Raw
from cm4vllm.engine.format.meta import Bring, Layer, ScriptMeta
from cm4vllm.engine.format.meta_shapes import Place
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.variations import are_defined
from cm4vllm.engine.run.request import Request, choice_note, parse_tags, select

_KEYS = frozenset({"name", "tags", "names", "env", "unknown", "only_if", "notes", "brings", "data"})


class PlannedStep(Value):
    """One script that a recipe's own code will run. `entry` holds its tags, its names and its environment."""

    name: str
    entry: Dependency
    unknown: Mapping[str, str]
    only_if: str
    notes: tuple[str, ...]
    brings: tuple[Bring, ...]
    data: Any

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> PlannedStep:
        """Read a step. Raises RecipeError for a key that no step has, and for a step without tags."""
        if strange := sorted(raw.keys() - _KEYS):
            raise RecipeError(f"a step has no key {strange[0]!r}", remedy=f"known: {', '.join(sorted(_KEYS))}")
        if not raw.get("tags"):
            raise RecipeError(f"the step {raw.get('name', '')!r} has no tags")
        return cls(
            name=str(raw.get("name") or ""),
            entry=Dependency.of({key: raw[key] for key in ("tags", "names", "env") if raw.get(key)}),
            unknown=raw.get("unknown") or {},
            only_if=str(raw.get("only_if") or ""),
            notes=tuple(map(str, raw.get("notes") or ())),
            brings=tuple(Bring.of(entry) for entry in raw.get("brings") or ()),
            data=raw.get("data"),
        )


#: A call of `run`, or `run` handed to a function that calls it.
_NESTED_RUN = re.compile(r"""automation["'\]]*\.run\b|\.access\b""")


def source_text_of(script: ScriptMeta) -> str:
    """Return the text of customize.py; empty if the script has none."""
    try:
        return (script.path / "customize.py").read_text(errors="replace", encoding="utf-8")
    except OSError:
        return ""


def has_hook(code: str, name: str) -> bool:
    """Return True if there is a hook of this name."""
    return bool(re.search(rf"^def {name}\(", code, re.MULTILINE))


def runs_scripts(code: str) -> bool:
    """Return True if a hook may run further scripts."""
    return bool(_NESTED_RUN.search(code))


def may_end_early(code: str) -> bool:
    """Return True if preprocess may return `skip`, which ends the script before run.sh and the later dependencies."""
    return "skip" in code


#: The files in which a recipe or the package names the environment keys that it reads.
_SOURCES = ("*.py", "*.yaml", "*.json")
_PACKAGE = Path(cm4vllm.__file__).parent
#: The beginning of a key whose end the code fills in: `CM_HOST_CPU_{name}`.
_BEGINNING = re.compile(r"(\w+_\w*)\{")
_OWN = "CM_"


def unread_words(words: Sequence[str], folders: Iterable[Path], *, with_package: bool) -> list[str]:
    """Return the environment keys in `words` that no file in these folders of recipes names.

    `with_package`: keys that begin with `CM_` are looked for in the files of this package, too. Other names in its
    files are variables of the process, not keys of recipes.
    """
    recipes = [path for folder in folders for pattern in _SOURCES for path in folder.glob(pattern)]
    left = _words_not_named(words, recipes)
    if with_package and left:
        package = [path for pattern in _SOURCES for path in _PACKAGE.rglob(pattern)]
        left = _words_not_named([word for word in left if word.startswith(_OWN)], package) | {
            word for word in left if not word.startswith(_OWN)
        }
    return [word for word in words if word in left]


def _words_not_named(words: Iterable[str], files: Iterable[Path]) -> set[str]:
    """Return those of the words that no file contains, nor composes from a beginning."""
    left = set(words)
    for path in files:
        if not left:
            break
        text = path.read_text(encoding="utf-8", errors="replace")
        begun = tuple(start for start in _BEGINNING.findall(text) if len(start) > len(_OWN))
        left -= {word for word in left if re.search(rf"\b{re.escape(word)}\b", text) or word.startswith(begun)}
    return left


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
        if any(runs_scripts(source_text_of(script)) for script in below):
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
    if any(runs_scripts(source_text_of(other)) for other in below):
        below = chain.below([*below, *(other for other in catalogue.all() if other.repo == script.repo)])
    folders = [other.path for other in below]
    if not given or any(any(folder.glob("*.sh")) for folder in folders):
        return []
    unread = unread_words(given, folders, with_package=any("cm4vllm" in source_text_of(other) for other in below))
    keys = {key: f"--{flag}" for flag, key in script.input_mapping.items()}
    hints = {key: nearest(key, keys, f"its inputs: cm show script {script.alias}") for key in unread}
    return [
        f"WARNING: --env.{key} has no effect: nothing below {script.title()} reads it; {hints[key]}; a variable that a "
        f"program reads is set before the command: {key}=... cm run script ..."
        for key in unread
    ]


def adr_targets(catalogue: Catalogue, tags: Any) -> Mapping[str, Any]:
    """Return the targets of `--adr` in the scripts with these tags.

    `inputs` has the environment key of each flag that they take; `names` those of the dependencies below them.
    """
    chain = Chain(catalogue)
    scripts = chain.answering(list(parse_tags(tags)[0]))
    inputs = {flag: key for script in scripts for flag, key in script.input_mapping.items()}
    return {"inputs": inputs, "names": sorted(chain.names_below(scripts) or ())}
