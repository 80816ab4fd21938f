"""What a script is, in words: for --help and `cm show script`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.progress import page
from cm4vllm.engine.format.catalogue import Catalogue
from cm4vllm.engine.format.meta import PHASES, Dependency, ScriptMeta
from cm4vllm.engine.plan.recipe_code import code_of, runs_scripts
from cm4vllm.engine.tools.find import asked_scripts

__all__ = ["describe", "script_help"]

_GENERAL = """\
cm run script --tags=<tag>,<tag>,_<variation>,... [--<input>=<value> ...]

  --help               with tags: what that script takes and gives
  --plan, --graph      what a run would do, as a tree or a Mermaid graph; nothing is run
  --env.KEY=value      set an environment key          --const.KEY=value   and let nothing change it
  --adr.<name>.tags=_x change the dependency <name>    --version=, --version_min=, --version_max=
  --new, --renew       make a further cache entry, make the present one again        --skip_cache
  --quiet, -s, -v      ask nothing, print nothing, print more                        -j  print the result as JSON

cm find script         where scripts are, by --tags= or name
cm show script         what they take and give
cm plan script         what a run would do
cm lint script         what is suspicious in their metas
cm test script         run the inputs that their metas give for tests
cm add script <name>   a new one, from a template
cm docker script       build and run one in a container; dockerfile: only write the Dockerfile
cm doctor script       what is wrong with the CM home and this machine

cm show cache          what is cached, with sizes and ages; cm find cache, cm rm cache: by --tags= too"""


def script_help(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Print what the scripts asked for are, or how to ask. An action's result comes back."""
    if not i.get("tags") and not i.get("artifact"):
        page(_GENERAL)
        return {"return": 0, "skip_delayed_help": True}
    try:
        scripts = asked_scripts(Catalogue(automation.cmind), i)
    except CmError as error:
        return {"return": error.exit_code, "error": str(error), "skip_delayed_help": True}
    page("\n\n".join(describe(script) for script in scripts))
    return {"return": 0, "skip_delayed_help": True}


def describe(script: ScriptMeta) -> str:
    """Return a page about a script: tags, inputs, variations by group, dependencies and what it gives."""
    typed = script.tags_help.strip().strip('"') or ",".join(script.tags)
    head = [f"{script.alias}  ({script.uid}, of {script.repo or 'an unregistered repository'})",
            f"  cm run script --tags={typed}", "",
            f"  path      {script.path}", f"  tags      {', '.join(script.tags)}",
            f"  cached    {'yes' if script.cache else 'when asked for' if script.can_force_cache else 'no'}"]
    if script.layer.default_version or script.versions:
        listed = ", ".join(script.versions)
        head.append(f"  versions  {script.layer.default_version or 'any'}{f' (known: {listed})' if listed else ''}")
    more = runs_scripts(code_of(script))
    parts = [("inputs", _inputs(script)), ("variations", _variations(script)),
             ("depends on", _dependencies(script, PHASES)),
             ("runs further scripts", [f"  cm plan script --tags={typed} lists them"] if more else []),
             ("brings", [f"  {_brought(bring)}" for bring in script.layer.brings]),
             ("gives", [f"  {key}" for key in script.layer.new_env_keys])]
    return "\n".join(line for line in [*head, *(line for title, lines in parts if lines
                                                  for line in ("", f"  {title}", *(f"  {line}" for line in lines)))])


def _inputs(script: ScriptMeta) -> list[str]:
    keys = sorted({*script.input_mapping, *script.input_description})
    return _columns((f"--{key}", _input_text(script, key)) for key in keys)


def _input_text(script: ScriptMeta, key: str) -> str:
    described = script.input_description.get(key)
    text = described if isinstance(described, str) else str((described or {}).get("desc", ""))
    default = described.get("default") if isinstance(described, dict) else None
    if default is None:
        default = script.layer.default_env.get(script.input_mapping.get(key, ""))
    if choices := (described.get("choices") if isinstance(described, dict) else None):
        text += f" ({', '.join(map(str, choices))})"
    # The mapping tells what an input is about where nobody described it.
    text = text or f"sets {script.input_mapping.get(key, '')}"
    return text + (f" (default: {default})" if default not in (None, "") else "")


def _variations(script: ScriptMeta) -> list[str]:
    groups: dict[str, list[str]] = {}
    for name, raw in script.variations.items():
        if "," not in name:  # combinations are not asked for: they come with their parts
            mark = " (default)" if raw.get("default") else f" (is _{raw['alias']})" if raw.get("alias") else ""
            groups.setdefault(str(raw.get("group") or ""), []).append(f"_{name}{mark}")
    ordered = sorted(groups.items(), key=lambda item: (item[0] == "", item[0]))
    free = "any of" if len(groups) > 1 else ""
    return _columns((f"{group}:" if group else free, ", ".join(names)) for group, names in ordered)


def _dependencies(script: ScriptMeta, phases: Iterable[str]) -> list[str]:
    rows = [(phase, dependency) for phase in phases for dependency in script.layer.deps[phase]]
    seen: dict[tuple[str, str], None] = {}
    for phase, dependency in rows:
        seen.setdefault((phase, _dependency(dependency)))
    return _columns((("" if phase == "deps" else f"{phase}: ") + text, "") for phase, text in seen)


def _dependency(dependency: Dependency) -> str:
    conditions = dependency.conditions
    conditional = any((conditions.enable_all, conditions.enable_any, conditions.skip_all, conditions.skip_any))
    names = f" [{', '.join(sorted(dependency.names))}]" if dependency.names else ""
    return ",".join(dependency.tags) + names + (" (conditional)" if conditional else "")


def _brought(bring: Any) -> str:
    return " ".join(filter(None, [bring.how, bring.what or bring.package or bring.requirements]))


def _columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Align two columns; the second one is wrapped to the terminal."""
    listed = list(rows)
    width = min(max((len(left) for left, _ in listed if _), default=0), 34)
    room = max(shutil.get_terminal_size((120, 24)).columns - width - 8, 40)
    found = []
    for left, right in listed:
        lines = textwrap.wrap(right, room, break_long_words=False, break_on_hyphens=False) or [""]
        found.append(f"  {left:<{width}}  {lines[0]}".rstrip())
        found += [f"  {'':<{width}}  {line}" for line in lines[1:]]
    return found
