"""Probable mistakes in scripts: keys without effect, references to undefined names, variations that never apply."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import CmError, RecipeError, nearest
from cm4vllm.common.progress import page
from cm4vllm.engine.cache.identity import module_file
from cm4vllm.engine.format.catalogue import Catalogue
from cm4vllm.engine.format.conditions import CONDITION_KEYS
from cm4vllm.engine.format.documents import lines_of
from cm4vllm.engine.format.inputs import INPUT_KEYS, INPUT_TYPES
from cm4vllm.engine.format.meta import (
    BRING_KEYS,
    DEPENDENCY_KEYS,
    LAYER_KEYS,
    PHASES,
    SCRIPT_KEYS,
    VARIATION_KEYS,
    Amendment,
    Dependency,
    Layer,
    ScriptMeta,
    Variation,
)
from cm4vllm.engine.format.shapes import Place, wrong_shapes
from cm4vllm.engine.format.variations import definition, known, resolve
from cm4vllm.engine.plan.recipe_code import code_of, runs_scripts
from cm4vllm.engine.run.request import ENGINE_FLAGS, parse_tags
from cm4vllm.engine.tools.find import asked_scripts

__all__ = ["Finding", "Linter", "lint_scripts"]

#: What stands for the value of a dynamic variation that is tried out.
_TRIAL = "1"
_OWN_CODE = re.compile(r"^\s*(from|import) cm4vllm\b", re.MULTILINE)
#: How many choices are listed where none is near.
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what, where in the meta (a path of keys), and the file and line (0: the whole file)."""

    text: str
    place: Place = ()
    path: Path = Path()
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


@dataclass
class Linter:
    """Lints the scripts of a catalogue. What one script says of others is looked up there."""

    catalogue: Catalogue
    _found: dict[tuple[str, ...], list[ScriptMeta]] = field(default_factory=dict)
    #: Which scripts describe an environment key, by repository and key.
    _described: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def findings(self, script: ScriptMeta) -> list[Finding]:
        """Return what is wrong with a script, in the order of its meta; nothing for a clean one."""
        try:
            found = [*_shapes(script), *_identity(script), *_keys(script), *_groups(script), *_reachable(script),
                     *_code(script), *_inputs(script), *self._inputs(script), *self._dependencies(script),
                     *self._amendments(script)]
        except (AttributeError, TypeError, ValueError) as error:
            found = [Finding(f"a part of the meta has the wrong shape: {error}")]
        meta = next((path for name in ("_cm.yaml", "_cm.json") if (path := script.path / name).is_file()), script.path)
        lines = lines_of(meta)
        placed = [Finding(one.text, one.place, one.path if one.path != Path() else meta,
                          one.line or _line(lines, one.place)) for one in found]
        return sorted(placed, key=lambda one: (str(one.path), one.line))

    def every(self) -> list[ScriptMeta]:
        """Return all readable scripts, also those that another one of the same UID hides."""
        found = []
        for path, repo in self.catalogue.folders():
            with contextlib.suppress(CmError):
                found.append(self.catalogue.script(path, repo))
        return found

    def duplicates(self) -> list[Finding]:
        """Return a finding for each folder whose UID another one before it has, or whose meta cannot be read."""
        first: dict[str, str] = {}
        found = []
        for path, repo in self.catalogue.folders():
            try:
                uid = self.catalogue.script(path, repo).uid
            except CmError as error:
                found.append(Finding(f"{error.what}: {error.cause}" if error.cause else error.what, path=Path(path)))
                continue
            if uid and uid in first:
                found.append(Finding(f"uid {uid} is that of {first[uid]}, which hides this script", path=Path(path)))
            first.setdefault(uid, path)
        return found

    def _inputs(self, script: ScriptMeta) -> Iterator[Finding]:
        """Yield the inputs that another script of the repository describes as well."""
        own = script.raw.get("inputs") or {}
        if own and not self._described:
            for path, repo in self.catalogue.folders():
                with contextlib.suppress(CmError):
                    for entry in (self.catalogue.script(path, repo).raw.get("inputs") or {}).values():
                        self._described.setdefault((repo, str(entry.get("key"))), []).append(Path(path).name)
        for flag, entry in own.items():
            tellers = self._described.get((script.repo, str(entry.get("key"))), [])
            if len(tellers) > 1:
                yield Finding(f"input {flag!r}: {entry.get('key')} is described by {', '.join(tellers)}; one of them "
                              "describes it, the others refer to that by inputs_of", ("inputs", flag))

    # --- what a script says of others --------------------------------------------------------------------------------

    def _dependencies(self, script: ScriptMeta) -> Iterator[Finding]:
        for place, _, phase, number, dependency in _all_dependencies(script):
            for text in self._dependency(dependency):
                yield Finding(text, (*place, phase, number))

    def _dependency(self, dependency: Dependency) -> Iterator[str]:
        words, text = _plain(dependency), ",".join(dependency.tags)
        try:
            tags, _, variations, _ = parse_tags(words)
        except CmError as error:
            yield f"{text}: {error.what}"
            return
        answering = self.answering(words)
        whole = bool(tags) and len(words) == len(dependency.tags)
        if not answering and whole:
            yield f"no script matches {text}"
        elif whole and not any(known(script, variations) for script in answering):
            names = {name for script in answering for name in script.variations}
            missing = next((name for name in variations if not any(known(s, [name]) for s in answering)), variations[0])
            yield f"no script that matches {text} has these variations; _{missing}: {_hint(missing, names)}"
        inputs = {key for script in answering for key in (*script.input_mapping, *script.input_description)}
        for key in dependency.raw:
            if key not in DEPENDENCY_KEYS and key not in inputs and key not in ENGINE_FLAGS:
                yield f"{text}: unknown key {key!r}; {_hint(key, DEPENDENCY_KEYS)}"

    def _amendments(self, script: ScriptMeta) -> Iterator[Finding]:
        own = frozenset(name for *_, dependency in _all_dependencies(script) for name in dependency.names)
        below = self.names_below(script)
        for place, layer in _layers(script):
            for kind, amendments, names in (("ad", layer.ad, own), ("adr", layer.adr, below)):
                for amendment in amendments:
                    yield from _amendment(amendment, kind, names, place)
        for place, _, phase, number, dependency in _all_dependencies(script):
            nested = Layer.of({"adr": dependency.raw.get("adr") or {}}).adr
            for amendment in nested:
                yield from _amendment(amendment, "adr", below, (*place, phase, number))

    def names_below(self, script: ScriptMeta) -> frozenset[str] | None:
        """Return the names of all dependencies that an adr of this script can reach.

        None where it is not known, because code in between runs further scripts.
        """
        seen: dict[Path, ScriptMeta] = {}
        waiting = [script]
        while waiting:
            one = waiting.pop()
            if one.path in seen:
                continue
            seen[one.path] = one
            if runs_scripts(code_of(one)):
                return None
            waiting += [answer for *_, dependency in _all_dependencies(one)
                        for answer in self.answering(_plain(dependency))]
        return frozenset(name for one in seen.values() for *_, dependency in _all_dependencies(one)
                         for name in dependency.names)

    def answering(self, words: Sequence[str]) -> list[ScriptMeta]:
        """Return the scripts that have the script tags among these words; none where there are no such tags."""
        try:
            tags, excluded, *_ = parse_tags(words)
        except CmError:
            return []
        if tags not in self._found:
            self._found[tags] = self.catalogue.with_tags(tags) if tags else []
        return [script for script in self._found[tags] if not set(excluded) & set(script.tags)]


def _plain(dependency: Dependency) -> list[str]:
    """Return the tags that are known without a run."""
    return [tag for tag in dependency.tags if "<<<" not in tag and "#" not in tag]


def _hint(word: str, choices: Iterable[str]) -> str:
    """Return the nearest choice, or the first few of them."""
    listed = sorted({str(choice) for choice in choices})
    hint = nearest(word, listed)
    if hint.startswith("did you mean") or len(listed) <= _LISTED:
        return hint
    return f"known: {', '.join(listed[:_LISTED])}, ..."


def _line(lines: Mapping[Place, int], place: Place) -> int:
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 0)


def _layers(script: ScriptMeta) -> Iterator[tuple[Place, Layer]]:
    yield (), script.layer
    for name, raw in script.variations.items():
        yield ("variations", name), Layer.of(raw)
    for version, raw in script.versions.items():
        yield ("versions", version), Layer.of(raw)


def _all_dependencies(script: ScriptMeta) -> Iterator[tuple[Place, Layer, str, int, Dependency]]:
    for place, layer in _layers(script):
        for phase in PHASES:
            for number, dependency in enumerate(layer.deps[phase]):
                yield place, layer, phase, number, dependency


def _shapes(script: ScriptMeta) -> Iterator[Finding]:
    """Yield the parts that are not the mapping or the list that they must be."""
    for place, text in wrong_shapes(script.raw):
        yield Finding(f"{place[-1]} {text}", place)


def _identity(script: ScriptMeta) -> Iterator[Finding]:
    if not re.fullmatch(r"[0-9a-f]{16}", script.uid):
        yield Finding(f"uid {script.uid!r} is not 16 hexadecimal digits in quotes", ("uid",))
    if not script.tags:
        yield Finding("it has no tags")
    for key in script.input_mapping:
        if "-" in key:
            yield Finding(f"input {key!r} cannot be typed: cm turns - into _", ("input_mapping", key))


def _inputs(script: ScriptMeta) -> Iterator[Finding]:
    for flag, entry in (script.raw.get("inputs") or {}).items():
        place: Place = ("inputs", flag)
        for key in entry:
            if key not in INPUT_KEYS:
                yield Finding(f"input {flag!r}: unknown key {key!r}; {_hint(key, INPUT_KEYS)}", (*place, key))
        if entry.get("type", "text") not in INPUT_TYPES:
            hint = _hint(str(entry["type"]), INPUT_TYPES)
            yield Finding(f"input {flag!r}: unknown type {entry['type']!r}; {hint}", place)
        if not entry.get("help"):
            yield Finding(f"input {flag!r} has no help", place)
    typed = {*script.input_mapping, *script.input_description, *ENGINE_FLAGS}
    for number, example in enumerate(script.examples):
        tags, *flags = example.split(" --")
        names, _, variations, _ = parse_tags(tags)
        if not set(names) <= set(script.tags) or not known(script, variations):
            yield Finding(f"example {example!r} does not name this script", ("examples", number))
        for flag in (word.partition("=")[0] for word in flags):
            if flag not in typed:
                yield Finding(f"example {example!r}: unknown input --{flag}; {_hint(flag, typed)}",
                              ("examples", number))


def _keys(script: ScriptMeta) -> Iterator[Finding]:
    yield from _unknown(script.raw, SCRIPT_KEYS, ())
    for name, raw in script.variations.items():
        yield from _unknown(raw, VARIATION_KEYS, ("variations", name))
    for version, raw in script.versions.items():
        yield from _unknown(raw, LAYER_KEYS, ("versions", version))
    for place, layer in _layers(script):
        raw = _at(script.raw, place)
        for number, bring in enumerate(raw.get("brings") or ()):
            yield from _unknown(bring, BRING_KEYS, (*place, "brings", number))
            listed = layer.brings[number].requirements
            if listed and not (script.path / listed).resolve().is_file():
                yield Finding(f"{listed} does not exist", (*place, "brings", number))


def _unknown(raw: Mapping[str, Any], allowed: Iterable[str], place: Place) -> Iterator[Finding]:
    where = f"{place[0].removesuffix('s')} {place[1]!r}: " if len(place) == 2 and isinstance(place[0], str) else ""
    for key in raw:
        if key not in allowed:
            yield Finding(f"{where}unknown key {str(key)!r}; {_hint(str(key), allowed)}", (*place, key))


def _at(raw: Mapping[str, Any], place: Place) -> Mapping[str, Any]:
    for step in place:
        found = {str(key): value for key, value in raw.items()}.get(str(step))
        raw = found if isinstance(found, Mapping) else {}
    return raw


def _groups(script: ScriptMeta) -> Iterator[Finding]:
    defaults: dict[str, str] = {}
    for name, raw in script.variations.items():
        variation = Variation.of(name, raw)
        place: Place = ("variations", name)
        if variation.is_default and not variation.group:
            yield Finding(f"variation {name!r} is a default, but has no group", place)
        elif variation.is_default and defaults.setdefault(variation.group, name) != name:
            yield Finding(f"variation {name!r} is a second default of group {variation.group!r}, after "
                          f"{defaults[variation.group]!r}", place)
        if name in _bases_of(script, name):
            yield Finding(f"variation {name!r} is its own base", (*place, "base"))
        implied = [*(("base", base) for base in variation.base), *(("alias", one) for one in [variation.alias] if one),
                   *(("default_variations", value) for value in variation.default_variations.values())]
        for key, other in implied:
            if "#" not in other and not definition(script.variations, other):
                yield Finding(f"variation {name!r} implies {other!r}, which is not defined; "
                              f"{_hint(other, script.variations)}", (*place, key))
    for forbidden in script.invalid_combinations:
        for name in sorted(forbidden):
            if not definition(script.variations, name) and name not in script.variations:
                yield Finding(f"invalid_variation_combinations: {name!r} is not defined; "
                              f"{_hint(name, script.variations)}", ("invalid_variation_combinations",))


def _bases_of(script: ScriptMeta, name: str) -> set[str]:
    """Return the variations that a variation builds on, directly or through others."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        raw = script.variations.get(definition(script.variations, ahead.pop())) or {}
        new = set(Variation.of(name, raw).base) - found
        found |= new
        ahead += new
    return found


def _reachable(script: ScriptMeta) -> Iterator[Finding]:
    """Yield the variations that no request can turn on."""
    for name in script.variations:
        parts = [part.strip() for part in name.split(",")]
        place: Place = ("variations", name)
        undefined = [part for part in parts
                     if part not in script.variations and not definition(script.variations, part)]
        if len(parts) > 1 and undefined:
            yield Finding(f"variation {name!r} never applies: {undefined[0]!r} is not defined; "
                          f"{_hint(undefined[0], script.variations)}", place)
            continue
        tried = [part.replace("#", _TRIAL) for part in parts]
        try:
            on = resolve(script, tried)
        except CmError as error:
            # What is not defined has a finding of its own.
            if "has no variation" not in error.what:
                yield Finding(f"variation {name!r} never applies: {error.what}", place)
            continue
        if len(parts) > 1 and name not in {variation.name for variation in on.combinations}:
            yield Finding(f"variation {name!r} never applies", place)


def _amendment(amendment: Amendment, kind: str, names: frozenset[str] | None, place: Place) -> Iterator[Finding]:
    at = (*place, kind, amendment.name)
    if names is not None and amendment.name not in names:
        where = "this script's own dependencies" if kind == "ad" else "what this script depends on"
        yield Finding(f"{kind}.{amendment.name}: nothing in {where} has that name; "
                      f"{_hint(amendment.name, names)}", at)
    for key in amendment.change:
        if key not in DEPENDENCY_KEYS and key not in CONDITION_KEYS:
            yield Finding(f"{kind}.{amendment.name}: unknown key {key!r}; {_hint(key, DEPENDENCY_KEYS)}", at)


def _code(script: ScriptMeta) -> Iterator[Finding]:
    try:
        ast.parse(code_of(script))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 0) or 0
        yield Finding(f"it is not Python: {getattr(error, 'msg', error)}", path=script.path / "customize.py", line=line)
    if script.cache and _OWN_CODE.search(code_of(script)) and not any(
            "made_by" in _at(script.raw, place) for place, _ in _layers(script)):
        yield Finding("made_by is missing: list the modules of cm4vllm that make what the cache stores, [] if none "
                      "does")
    for place, layer in _layers(script):
        for module in layer.made_by:
            if not Path(module_file(module)).is_file():
                yield Finding(f"made_by: unknown module {module}", (*place, "made_by"))
        if layer.script_name and not (script.path / f"{layer.script_name}.sh").is_file() and not any(
                script.path.glob(f"{layer.script_name}-*.sh")):
            yield Finding(f"script_name: {layer.script_name}.sh does not exist", (*place, "script_name"))
        exported = {key for _, one in _layers(script) for key in one.new_env_keys}
        for key in layer.promised_env_keys:
            if key not in exported:
                yield Finding(f"promised_env_keys: {key} is not one of new_env_keys; {_hint(key, exported)}",
                              (*place, "promised_env_keys"))


def lint_scripts(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Print what is wrong with the scripts asked for, with all of them without tags or name; 3 if anything is."""
    catalogue = Catalogue(automation.cmind)
    linter = Linter(catalogue)
    try:
        scripts = asked_scripts(catalogue, i) if i.get("artifact") or i.get("tags") else linter.every()
    except CmError as error:
        return {"return": error.exit_code, "error": str(error)}
    folders = {script.path for script in scripts}
    found = [one for one in linter.duplicates() if one.path in folders or not (i.get("artifact") or i.get("tags"))]
    for script in scripts:
        found += linter.findings(script)
    data = [_as_json(one) for one in found]
    if i.get("out") != "json":
        for one in found:
            page(str(one))
        wrong = len({one.path.parent if one.path.suffix else one.path for one in found})
        page(f"{len(scripts)} scripts, " + (f"{len(found)} findings in {wrong} of them" if found else "all clean"))
    if not found:
        return {"return": 0, "scripts": len(scripts), "findings": []}
    failure = RecipeError(f"lint found {len(found)} problems", remedy="each line above names file and line")
    return {"return": failure.exit_code, "error": str(failure), "scripts": len(scripts), "findings": data}


def _as_json(finding: Finding) -> dict[str, Any]:
    return {"path": str(finding.path), "line": finding.line or None, "finding": finding.text}
