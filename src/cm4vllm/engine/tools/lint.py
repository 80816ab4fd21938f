"""Probable mistakes in scripts: keys without effect, references to undefined names, variations that never apply."""

import ast
import contextlib
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cm4vllm.common.checking.checks import reason_of
from cm4vllm.common.checking.findings import Finding
from cm4vllm.common.errors import CmError, RecipeError, nearest
from cm4vllm.common.progress import page
from cm4vllm.engine.cache.reuse import module_file
from cm4vllm.engine.format.dependency import DEPENDENCY_KEYS, Amendment, Dependency
from cm4vllm.engine.format.inputs import INPUT_KEYS, INPUT_TYPES, SHOWN_KEYS
from cm4vllm.engine.format.meta import BRING_KEYS, LAYER_KEYS, SCRIPT_KEYS, VARIATION_KEYS, Layer, ScriptMeta, Variation
from cm4vllm.engine.format.meta_files import lines_of
from cm4vllm.engine.format.meta_shapes import Place, wrong_shapes
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.format.variations import Resolution, are_defined, definition, resolve
from cm4vllm.engine.plan.chain import Chain, dependencies_of, layers_of, plain_tags, source_text_of
from cm4vllm.engine.run.flags import ENGINE_FLAGS
from cm4vllm.engine.run.request import parse_tags
from cm4vllm.engine.tools.help import asked_scripts
from cm4vllm.engine.tools.input_lists import FIRST_FLAGS

#: The value with which a dynamic variation is tried.
_TRIAL = "1"
_OWN_CODE = re.compile(r"^\s*(from|import) cm4vllm\b", re.MULTILINE)
#: The number of choices that are listed where none is near.
_LISTED = 8


def finding(text: str, place: Place = (), path: str | Path = "", line: int = 0) -> Finding:
    """Return one mistake in a script: what, where in the meta (a path of keys), file and line (0: the whole file)."""
    return Finding(what=text, field=".".join(map(str, place)), file=str(path), line=line)


def own_findings(script: ScriptMeta) -> list[Finding]:
    """Return the findings on a script that need no other script."""
    return [
        *(finding(f"{place[-1]} {text}", place) for place, text in wrong_shapes(script.raw)),
        *_identity_findings(script),
        *_key_findings(script),
        *_group_findings(script),
        *_reachability_findings(script),
        *_code_findings(script),
        *_input_findings(script),
    ]


def nearest_choice(word: str, choices: Iterable[str]) -> str:
    """Return the nearest choice, or the first few of them."""
    listed = sorted({str(choice) for choice in choices})
    hint = nearest(word, listed)
    if hint.startswith("did you mean") or len(listed) <= _LISTED:
        return hint
    return f"known: {', '.join(listed[:_LISTED])}, ..."


def _identity_findings(script: ScriptMeta) -> Iterator[Finding]:
    """Yield the faults in UID, tags and names of inputs."""
    if not re.fullmatch(r"[0-9a-f]{16}", script.uid):
        yield finding(f"uid {script.uid!r} is not 16 hexadecimal digits in quotes", ("uid",))
    if not script.tags:
        yield finding("it has no tags")
    for key in script.input_mapping:
        if "-" in key:
            yield finding(f"input {key!r} cannot be typed: cm turns - into _", ("input_mapping", key))


def _input_findings(script: ScriptMeta) -> Iterator[Finding]:
    """Yield unknown keys and types of inputs, inputs without help, and examples that the script does not accept."""
    for flag, entry in (script.raw.get("inputs") or {}).items():
        place: Place = ("inputs", flag)
        yield from _unknown_keys(entry, INPUT_KEYS, place, f"input {flag!r}: ")
        if entry.get("type", "text") not in INPUT_TYPES:
            hint = nearest_choice(str(entry["type"]), INPUT_TYPES)
            yield finding(f"input {flag!r}: unknown type {entry['type']!r}; {hint}", place)
        if not entry.get("help"):
            yield finding(f"input {flag!r} has no help", place)
    for flag, change in (script.raw.get("input_changes") or {}).items():
        yield from _unknown_keys(change, SHOWN_KEYS, ("input_changes", flag), f"input_changes of {flag!r}: ")
    typed = {*script.input_mapping, *script.input_description, *ENGINE_FLAGS}
    first, known = dict.fromkeys(script.first_inputs), {*script.input_mapping, *FIRST_FLAGS}
    yield from _unknown_keys(first, known, ("first_inputs",), "first_inputs: ")
    for number, example in enumerate(script.examples):
        tags, *flags = shlex.split(example)
        names, _, variations, _ = parse_tags(tags)
        if not set(names) <= set(script.tags) or not are_defined(script, variations):
            yield finding(f"example {example!r} does not name this script", ("examples", number))
        for flag in (word[2:].partition("=")[0] for word in flags if word.startswith("--")):
            if flag not in typed:
                yield finding(
                    f"example {example!r}: unknown input --{flag}; {nearest_choice(flag, typed)}", ("examples", number)
                )


def _key_findings(script: ScriptMeta) -> Iterator[Finding]:
    """Yield unknown keys of the meta, its variations, versions, conditions and downloads."""
    yield from _unknown_keys(script.raw, SCRIPT_KEYS, ())
    for name, raw in script.variations.items():
        yield from _unknown_keys(raw, VARIATION_KEYS, ("variations", name), f"variation {name!r}: ")
    for version, raw in script.versions.items():
        yield from _unknown_keys(raw, LAYER_KEYS, ("versions", version), f"version {version!r}: ")
    for place, raw, layer in layers_of(script):
        for number, bring in enumerate(raw.get("brings") or ()):
            yield from _unknown_keys(bring, BRING_KEYS, (*place, "brings", number), f"bring {number}: ")
            listed = layer.brings[number].requirements
            if listed and not (script.path / listed).resolve().is_file():
                yield finding(f"{listed} does not exist", (*place, "brings", number))


def _unknown_keys(raw: Mapping[str, Any], allowed: Iterable[str], place: Place, owner: str = "") -> Iterator[Finding]:
    """Yield the keys of a part that have no meaning there; `owner` says in words whose part it is."""
    for key in raw:
        if key not in allowed:
            yield finding(f"{owner}unknown key {str(key)!r}; {nearest_choice(str(key), allowed)}", (*place, key))


def _group_findings(script: ScriptMeta) -> Iterator[Finding]:
    """Yield contradictions of groups, defaults, bases and combinations of variations."""
    defaults: dict[str, str] = {}
    for name, raw in script.variations.items():
        variation = Variation.of(name, raw)
        place: Place = ("variations", name)
        if variation.is_default and not variation.group:
            yield finding(f"variation {name!r} is a default, but has no group", place)
        elif variation.is_default and defaults.setdefault(variation.group, name) != name:
            yield finding(
                f"variation {name!r} is a second default of group {variation.group!r}, after "
                f"{defaults[variation.group]!r}",
                place,
            )
        if name in _bases_of(script, name):
            yield finding(f"variation {name!r} is its own base", (*place, "base"))
        implied = [
            *(("base", base) for base in variation.base),
            *(("alias", alias) for alias in [variation.alias] if alias),
            *(("default_variations", value) for value in variation.default_variations.values()),
        ]
        for key, other in implied:
            if "#" not in other and not definition(script.variations, other):
                yield finding(
                    f"variation {name!r} implies {other!r}, which is not defined; "
                    f"{nearest_choice(other, script.variations)}",
                    (*place, key),
                )
    listed = {
        "invalid_variation_combinations": script.invalid_combinations,
        "valid_variation_combinations": script.valid_combinations,
    }
    for key, combinations in listed.items():
        for name in sorted(frozenset[str]().union(*combinations)):
            if not definition(script.variations, name) and name not in script.variations:
                yield finding(f"{key}: {name!r} is not defined; {nearest_choice(name, script.variations)}", (key,))


def _bases_of(script: ScriptMeta, name: str) -> set[str]:
    """Return the variations that a variation builds on, directly or through others."""
    bases: set[str] = set()
    ahead = [name]
    while ahead:
        raw = script.variations.get(definition(script.variations, ahead.pop())) or {}
        new = set(Variation.of(name, raw).base) - bases
        bases |= new
        ahead += new
    return bases


def _turned_on(script: ScriptMeta, names: list[str]) -> Resolution:
    """Return the variations that are on where these are asked for, within a valid combination where these are listed.

    Raises CmError where no request can ask for them.
    """
    failures = []
    for beside in [sorted(combination - set(names)) for combination in script.valid_combinations] or [[]]:
        try:
            return resolve(script, [*names, *beside])
        except CmError as error:
            failures.append(error)
    raise failures[0]


def _reachability_findings(script: ScriptMeta) -> Iterator[Finding]:
    """Yield the variations that no request can turn on."""
    for name in script.variations:
        parts = [part.strip() for part in name.split(",")]
        place: Place = ("variations", name)
        undefined = [
            part for part in parts if part not in script.variations and not definition(script.variations, part)
        ]
        if len(parts) > 1 and undefined:
            yield finding(
                f"variation {name!r} never applies: {undefined[0]!r} is not defined; "
                f"{nearest_choice(undefined[0], script.variations)}",
                place,
            )
            continue
        tried = [part.replace("#", _TRIAL) for part in parts]
        try:
            on = _turned_on(script, tried)
        except CmError as error:
            # A name that is not defined has a finding of its own.
            if "has no variation" not in error.what:
                yield finding(f"variation {name!r} never applies: {error.what}", place)
            continue
        if len(parts) > 1 and name not in {variation.name for variation in on.combinations}:
            yield finding(f"variation {name!r} never applies", place)


def amendment_findings(
    amendment: Amendment, kind: str, names: frozenset[str] | None, place: Place
) -> Iterator[Finding]:
    """Yield the faults of an amendment: a name that no dependency has, or an unknown key."""
    at = (*place, kind, amendment.name)
    if names is not None and amendment.name not in names:
        where = "this script's own dependencies" if kind == "ad" else "what this script depends on"
        yield finding(
            f"{kind}.{amendment.name}: nothing in {where} has that name; {nearest_choice(amendment.name, names)}", at
        )
    yield from _unknown_keys(amendment.change, DEPENDENCY_KEYS, at, f"{kind}.{amendment.name}: ")


def _code_findings(script: ScriptMeta) -> Iterator[Finding]:
    """Yield syntax errors, missing modules and shell files, and promised keys that are not exported."""
    try:
        ast.parse(source_text_of(script))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 0) or 0
        yield finding(f"it is not Python: {getattr(error, 'msg', error)}", path=script.path / "customize.py", line=line)
    if (
        script.cache
        and _OWN_CODE.search(source_text_of(script))
        and not any("made_by" in raw for _, raw, _ in layers_of(script))
    ):
        yield finding(
            "made_by is missing: list the modules of cm4vllm that make what the cache stores, [] if none does"
        )
    for place, _, layer in layers_of(script):
        for module in layer.made_by:
            if not Path(module_file(module)).is_file():
                yield finding(f"made_by: unknown module {module}", (*place, "made_by"))
        if (
            layer.script_name
            and not (script.path / f"{layer.script_name}.sh").is_file()
            and not any(script.path.glob(f"{layer.script_name}-*.sh"))
        ):
            yield finding(f"script_name: {layer.script_name}.sh does not exist", (*place, "script_name"))
        exported = {key for *_, layer in layers_of(script) for key in layer.new_env_keys}
        for key in layer.promised_env_keys:
            if key not in exported:
                yield finding(
                    f"promised_env_keys: {key} is not one of new_env_keys; {nearest_choice(key, exported)}",
                    (*place, "promised_env_keys"),
                )


class Linter:
    """Lints the scripts of a catalogue. What one script says of others is looked up there."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.chain = Chain(catalogue)

    def findings(self, script: ScriptMeta) -> list[Finding]:
        """Return the faults of a script, in the order of its meta; none for a clean one."""
        try:
            faults = [
                *own_findings(script),
                *self._inputs(script),
                *self._dependencies(script),
                *self._amendments(script),
            ]
        except (AttributeError, TypeError, ValueError) as error:
            faults = [finding(f"a part of the meta has the wrong shape: {error}")]
        meta = next((path for name in ("_cm.yaml", "_cm.json") if (path := script.path / name).is_file()), script.path)
        lines = {".".join(map(str, place)): line for place, line in lines_of(meta).items()}
        placed = (
            replace(fault, file=fault.file or str(meta), line=fault.line or _line(lines, fault.field))
            for fault in faults
        )
        return sorted(placed, key=lambda fault: (fault.file, fault.line))

    def every(self) -> list[ScriptMeta]:
        """Return all readable scripts, including those hidden by another script with the same UID."""
        scripts = []
        for path, repo in self.catalogue.folders():
            with contextlib.suppress(CmError):
                scripts.append(self.catalogue.script(path, repo))
        return scripts

    def duplicates(self) -> list[Finding]:
        """Return a finding for each folder that has the UID of an earlier folder, or a meta that cannot be read."""
        first: dict[str, str] = {}
        faults = []
        for path, repo in self.catalogue.folders():
            try:
                uid = self.catalogue.script(path, repo).uid
            except CmError as error:
                faults.append(finding(reason_of(error), path=path))
                continue
            if uid and uid in first:
                faults.append(finding(f"uid {uid} is that of {first[uid]}, which hides this script", path=path))
            first.setdefault(uid, path)
        return faults

    def _inputs(self, script: ScriptMeta) -> Iterator[Finding]:
        """Yield the inputs that another script of the repository describes as well."""
        for flag, entry in (script.raw.get("inputs") or {}).items():
            tellers = self._describing_folders[script.repo, str(entry.get("key"))]
            if len(tellers) > 1:
                yield finding(
                    f"input {flag!r}: {entry.get('key')} is described by {', '.join(tellers)}; one of them "
                    "describes it, the others refer to that by inputs_of",
                    ("inputs", flag),
                )

    @cached_property
    def _describing_folders(self) -> Mapping[tuple[str, str], list[str]]:
        """The folders of the scripts that describe an environment key, by repository and key."""
        described: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for script in self.every():
            for entry in (script.raw.get("inputs") or {}).values():
                described[script.repo, str(entry.get("key"))].append(script.path.name)
        return described

    def _dependencies(self, script: ScriptMeta) -> Iterator[Finding]:
        for place, _, phase, number, dependency in dependencies_of(script):
            yield from (finding(text, (*place, phase, number)) for text in self._dependency(dependency))

    def _dependency(self, dependency: Dependency) -> Iterator[str]:
        """Yield what is wrong with the tags and variations of a dependency."""
        words, text = plain_tags(dependency), ",".join(dependency.tags)
        try:
            tags, _, variations, _ = parse_tags(words)
        except CmError as error:
            yield f"{text}: {error.what}"
            return
        answering = self.chain.answering(words)
        whole = bool(tags) and len(words) == len(dependency.tags)
        if not answering and whole:
            yield f"no script matches {text}"
        elif whole and not any(are_defined(script, variations) for script in answering):
            names = {name for script in answering for name in script.variations}
            alone = (name for name in variations if not any(are_defined(s, [name]) for s in answering))
            missing = next(alone, variations[0])
            yield f"no script that matches {text} has these variations; _{missing}: {nearest_choice(missing, names)}"
        inputs = {key for script in answering for key in (*script.input_mapping, *script.input_description)}
        for key in dependency.raw:
            if key not in DEPENDENCY_KEYS and key not in inputs and key not in ENGINE_FLAGS:
                yield f"{text}: unknown key {key!r}; {nearest_choice(key, DEPENDENCY_KEYS)}"

    def _amendments(self, script: ScriptMeta) -> Iterator[Finding]:
        """Yield the changes of dependencies (`ad`, `adr`) whose names no dependency has."""
        own = frozenset(name for *_, dependency in dependencies_of(script) for name in dependency.names)
        below = self.chain.names_below([script])
        for place, _, layer in layers_of(script):
            for kind, amendments, names in (("ad", layer.ad, own), ("adr", layer.adr, below)):
                for amendment in amendments:
                    yield from amendment_findings(amendment, kind, names, place)
        for place, _, phase, number, dependency in dependencies_of(script):
            for amendment in Layer.of({"adr": dependency.raw.get("adr") or {}}).adr:
                yield from amendment_findings(amendment, "adr", below, (*place, phase, number))


def _line(lines: Mapping[str, int], place: str) -> int:
    """Return the line of a place in a meta, or of the nearest part around it that has one; 0 where none has."""
    while place and place not in lines:
        place = place.rpartition(".")[0]
    return lines.get(place, 0)


def lint_scripts(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Print the faults of the scripts asked for (all without tags or name); return cmind's result, 3 for any."""
    catalogue = Catalogue(automation.cmind)
    linter = Linter(catalogue)
    faults = linter.duplicates()
    if i.get("artifact") or i.get("tags"):
        scripts = asked_scripts(catalogue, i)
        faults = [fault for fault in faults if any(fault.file == str(script.path) for script in scripts)]
    else:
        scripts = linter.every()
    faults += [fault for script in scripts for fault in linter.findings(script)]
    data = [{"path": fault.file, "line": fault.line or None, "finding": fault.what} for fault in faults]
    if i.get("out") != "json":
        for fault in faults:
            page(str(fault))
        files = {Path(fault.file) for fault in faults}
        wrong = len({path.parent if path.suffix else path for path in files})
        page(f"{len(scripts)} scripts, " + (f"{len(faults)} findings in {wrong} of them" if faults else "all clean"))
    if not faults:
        return {"return": 0, "scripts": len(scripts), "findings": []}
    failure = RecipeError(f"lint found {len(faults)} problems", remedy="each line above names file and line")
    return {"return": failure.exit_code, "error": str(failure), "scripts": len(scripts), "findings": data}
