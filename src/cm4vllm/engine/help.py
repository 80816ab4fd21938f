"""What a script is, in words: for --help and `cm show script`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.engine.catalogue import Catalogue
from cm4vllm.engine.meta import ScriptMeta
from cm4vllm.engine.request import Request
from cm4vllm.engine.selection import candidates

__all__ = ["describe", "script_help"]

_GENERAL = """\
cm run script --tags=<tag>,<tag>,_<variation>,... [--<input>=<value> ...]

  --help with tags     what that script takes and gives
  --env.KEY=value      set an environment key          --const.KEY=value   and let nothing change it
  --adr.<name>.tags=_x change the dependency <name>    --version=, --version_min=, --version_max=
  --new, --renew       make a further cache entry, make the present one again        --skip_cache
  --quiet, -s, -v      ask nothing, print nothing, print more                        -j  print the result as JSON

cm find script         where all scripts are           cm show cache       what is cached"""


def script_help(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Print what the scripts asked for are, or how to ask. An action's result comes back."""
    try:
        request = Request.of(i, Path.cwd())
    except UsageError:
        print(_GENERAL)
        return {"return": 0, "skip_delayed_help": True}
    try:
        scripts = candidates(Catalogue(automation.cmind), request)
    except CmError as error:
        return {"return": error.exit_code, "error": str(error), "skip_delayed_help": True}
    for script in scripts:
        print(describe(script))
    return {"return": 0, "skip_delayed_help": True}


def describe(script: ScriptMeta) -> str:
    """Return a page about a script: tags, inputs, variations by group, dependencies and what it gives."""
    lines = [f"{script.alias} ({script.uid}) of {script.repo or 'an unregistered repository'}",
             f"  path:       {script.path}", f"  tags:       {','.join(script.tags)}",
             f"  cached:     {'yes' if script.cache else 'no'}"]
    inputs = sorted({*script.input_mapping, *script.input_description})
    if inputs:
        lines.append("  inputs:")
        lines += [f"    --{key:<22} {_input_text(script, key)}" for key in inputs]
    if script.variations:
        lines.append("  variations:")
        lines += _variation_lines(script)
    for phase, deps in script.layer.deps.items():
        lines += [f"  {phase + ':':<12}{','.join(dep.tags)}" for dep in deps]
    if script.layer.new_env_keys:
        lines.append(f"  gives:      {', '.join(script.layer.new_env_keys)}")
    return "\n".join(lines)


def _input_text(script: ScriptMeta, key: str) -> str:
    described = script.input_description.get(key)
    text = described if isinstance(described, str) else (described or {}).get("desc", "")
    default = described.get("default") if isinstance(described, dict) else None
    return text + (f" (default: {default})" if default is not None else "")


def _variation_lines(script: ScriptMeta) -> list[str]:
    groups: dict[str, list[str]] = {}
    for name, raw in script.variations.items():
        mark = " (default)" if raw.get("default") else ""
        groups.setdefault(str(raw.get("group") or ""), []).append(f"_{name}{mark}")
    return [f"    {f'{group}: ' if group else ''}{', '.join(names)}" for group, names in sorted(groups.items())]
