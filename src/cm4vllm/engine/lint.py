"""What is suspicious in a script's meta: keys that nobody reads, dependencies that nothing answers."""

from __future__ import annotations

import re

from cm4vllm.common.errors import CmError, nearest
from cm4vllm.engine.catalogue import Catalogue
from cm4vllm.engine.conditions import CONDITION_KEYS
from cm4vllm.engine.meta import DEPENDENCY_KEYS, PHASES, SCRIPT_KEYS, VARIATION_KEYS, Dependency, ScriptMeta, Variation
from cm4vllm.engine.request import ENGINE_FLAGS, parse_tags
from cm4vllm.engine.variations import definition, known

__all__ = ["lint"]


def lint(script: ScriptMeta, catalogue: Catalogue) -> list[str]:
    """Return one line for each finding; none for a clean script."""
    findings = [f"unknown key {key!r}; {nearest(key, SCRIPT_KEYS)}" for key in script.unknown]
    if not re.fullmatch(r"[0-9a-f]{16}", script.uid):
        findings.append(f"uid {script.uid!r} is not 16 hexadecimal digits in quotes")
    findings += [f"input {key!r} cannot be typed: cm turns - into _" for key in script.input_mapping if "-" in key]
    for phase in PHASES:
        for dependency in script.layer.deps[phase]:
            findings += _dependency(dependency, catalogue, phase)
    for name, raw in script.variations.items():
        variation = Variation.of(name, raw)
        findings += [f"variation {name!r}: unknown key {key!r}; {nearest(key, VARIATION_KEYS)}"
                     for key in variation.unknown]
        implied = [*variation.base, *variation.default_variations.values(), *filter(None, [variation.alias])]
        findings += [f"variation {name!r} implies {other!r}, which is not defined" for other in implied
                     if "#" not in other and not definition(script.variations, other)]
        for phase in PHASES:
            for dependency in variation.layer.deps[phase]:
                findings += _dependency(dependency, catalogue, f"variation {name!r}: {phase}")
    return findings


def _dependency(dependency: Dependency, catalogue: Catalogue, where: str) -> list[str]:
    text = ",".join(dependency.tags)
    if "<<<" in text or "#" in text:
        return []
    try:
        tags, excluded, variations, _ = parse_tags(dependency.tags)
    except CmError as error:
        return [f"{where}: {text}: {error.what}"]
    answering = [s for s in catalogue.with_tags(tags) if not set(excluded) & set(s.tags)] if tags else []
    if not answering:
        return [f"{where}: no script answers to {text}"]
    findings = []
    if not any(known(script, variations) for script in answering):
        findings.append(f"{where}: no script that answers to {text} has these variations")
    inputs = {key for script in answering for key in (*script.input_mapping, *script.input_description)}
    findings += [f"{where}: {text}: unknown key {key!r}; {nearest(key, DEPENDENCY_KEYS)}" for key in dependency.inputs
                 if key not in inputs and key not in ENGINE_FLAGS]
    for change in (dependency.raw.get("adr") or {}).values():
        findings += [f"{where}: {text}: adr: unknown key {key!r}" for key in change
                     if key not in DEPENDENCY_KEYS and key not in CONDITION_KEYS]
    return findings
