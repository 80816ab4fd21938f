"""The type, values and default of each recipe's inputs, written into the metas from the settings that read them.

    python docs/tools/recipe_inputs.py

changes the `inputs` of script/*/_cm.yaml: what a field of a settings class says of its key stands there as it does in
the code. Key, group, help and example of an input are the meta's own, and the default where the code has none: it is
found at run time then, and described in words.
"""

import importlib
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml
from msgspec import NODEFAULT
from msgspec.structs import fields

from cm4vllm.common.settings import Settings, env_keys

ROOT = Path(__file__).resolve().parents[2]
_TYPES = {int: "integer", float: "number", bool: "switch", str: "text"}
#: The types of a meta that say more than the code's: a path is a text, and some numbers are whole ones.
_NARROWER = {("path", "text"), ("integer", "number")}
_ORDER = ("key", "group", "type", "values", "several", "default", "example", "also", "help")
Facts = dict[str, Any]


@cache
def code_facts() -> Mapping[str, Facts]:
    """Return the facts of each environment key that settings read. Raises ValueError for a key with two defaults."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        if re.search(r"^class \w+\(\w+, frozen=True, kw_only=True\)", path.read_text(encoding="utf-8"), re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    known: dict[str, Facts] = {}
    for cls in _subclasses(Settings):
        hints, defaults = get_type_hints(cls), {field.name: field.default for field in fields(cls)}
        for field, key in env_keys(cls).items():
            facts = {**_kind(hints[field]), **_default(defaults[field])}
            earlier = known.setdefault(key, facts)
            if "default" in facts and facts["default"] != earlier.setdefault("default", facts["default"]):
                raise ValueError(f"{key} has the defaults {earlier['default']} and {facts['default']} ({cls.__name__})")
    return known


def _subclasses(cls: type[Settings]) -> Iterator[type[Settings]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def _kind(hint: Any) -> Facts:
    """Return type and values of a field."""
    parts = () if get_origin(hint) is Literal else get_args(hint)
    kind = next((kind for kind in parts if kind is not type(None)), hint)
    if get_origin(kind) is Literal:
        return {"type": "text", "values": [value for value in get_args(kind) if value]}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "text", "values": [str(member.value) for member in kind]}
    return {"type": _TYPES.get(kind, "text")}


def _default(default: Any) -> Facts:
    """Return the default of a field in words; nothing for a field without one, or one that is found at run time."""
    if default is NODEFAULT or default is None or default == "" or (default == 0 and default is not False):
        return {}
    if isinstance(default, bool):
        return {"default": "yes" if default else "no"}
    return {"default": f"{default:g}" if isinstance(default, float) else str(default)}


def stale(meta: Path) -> dict[str, Facts]:
    """Return the inputs of a meta that differ from the code, as they have to be."""
    raw = yaml.safe_load(meta.read_text(encoding="utf-8"))
    changed = {}
    for flag, entry in (raw.get("inputs") or {}).items():
        facts = code_facts().get(entry["key"], {})
        known = {name: fact for name, fact in facts.items() if not _stands_otherwise(name, entry, raw)}
        wanted = {**entry, **known}
        if wanted.get("type") == "text":
            del wanted["type"]
        if wanted != entry:
            changed[flag] = wanted
    return changed


def _stands_otherwise(name: str, entry: Facts, raw: Facts) -> bool:
    """Return True for a fact that the meta states more narrowly, takes from data, or sets in the environment."""
    if name == "type":
        return (entry.get("type"), code_facts()[entry["key"]]["type"]) in _NARROWER
    if name == "default" and entry["key"] in (raw.get("default_env") or {}):
        return True
    return "{" in str(entry.get(name, ""))


def renew(meta: Path) -> None:
    """Write the inputs that differ from the code as they have to be."""
    text = meta.read_text(encoding="utf-8")
    for flag, entry in stale(meta).items():
        block = re.compile(rf"(?<=^inputs:\n).*?^  {flag}:\n.*?(?=^  \S|^\S|^\n|\Z)", re.MULTILINE | re.DOTALL)
        text = block.sub(lambda match: _replace(match[0], flag, entry), text, count=1)  # noqa: B023 - used at once
    meta.write_text(text, encoding="utf-8")


def _replace(inputs: str, flag: str, entry: Facts) -> str:
    """Return the text of inputs with the last of them, `flag`, as it has to be."""
    start = inputs.rindex(f"  {flag}:\n")
    words = [f"{name}: {_scalar(entry[name])}" for name in _ORDER if name in entry]
    lines = textwrap.wrap(f"{{{', '.join(words)}}}", 120, initial_indent=" " * 4, subsequent_indent=" " * 5)
    return f"{inputs[:start]}  {flag}:\n" + "".join(f"{line}\n" for line in lines)


def _scalar(value: Any) -> str:
    """Return a value as it stands in a mapping of one line: a word as it is, another text in quotes."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value) and yaml.safe_load(value) == value:
        return value
    style = '"' if isinstance(value, str) else None
    text: str = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=10**6, allow_unicode=True)
    return text.removesuffix("...\n").strip()


if __name__ == "__main__":
    for path in sorted((ROOT / "script").glob("*/_cm.yaml")):
        if stale(path):
            renew(path)
            print(path.relative_to(ROOT))
    sys.exit()
