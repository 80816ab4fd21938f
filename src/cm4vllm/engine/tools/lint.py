"""Probable mistakes in scripts: keys without effect, references to undefined names, variations that never apply."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cm4vllm.common.checking.checks import reason_of
from cm4vllm.common.checking.findings import Finding
from cm4vllm.common.errors import CmError, RecipeError
from cm4vllm.common.progress import page
from cm4vllm.engine.format.dependency import DEPENDENCY_KEYS, Dependency
from cm4vllm.engine.format.documents import lines_of
from cm4vllm.engine.format.meta import Layer, ScriptMeta
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.format.variations import are_defined
from cm4vllm.engine.plan.chain import Chain, dependencies_of, layers_of, plain_tags
from cm4vllm.engine.run.flags import ENGINE_FLAGS
from cm4vllm.engine.run.request import parse_tags
from cm4vllm.engine.tools.find import asked_scripts
from cm4vllm.engine.tools.lint_checks import amendment_findings, finding, nearest_choice, own_findings, place_text


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
        lines = {place_text(place): line for place, line in lines_of(meta).items()}
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

    # --- what a script says of others --------------------------------------------------------------------------------

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
            missing = next(
                (name for name in variations if not any(are_defined(s, [name]) for s in answering)), variations[0]
            )
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
