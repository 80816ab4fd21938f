"""Plan of a recipe's own code, by the hook `plan` of its customize.py: the keys that it sets, the scripts it runs.

    def plan(i):
        return {"return": 0, "env": {"CM_KEY": "value"}, "steps": [{"name": "model", "tags": "get,ml-model,_tiny"}]}

The hook gets `i["env"]`, the keys whose values are known before the run, and `i["input"]`, the flags. It changes
nothing on the machine, and raises what `preprocess` raises for the same input. What it returns is all that the recipe's
code changes: a key that it does not name keeps the value that it has. One that returns neither `env` nor `steps` only
refuses: what the code changes stays unknown.

`adr`, where it is returned, takes the place of the caller's for the steps and for what is below them.

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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cm4vllm
from cm4vllm.common.errors import RecipeError
from cm4vllm.engine.format.dependency import Dependency
from cm4vllm.engine.format.meta import Bring, ScriptMeta
from cm4vllm.engine.format.value import Value

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


def code_of(script: ScriptMeta) -> str:
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
    """Return those of the words, names of environment keys, that no file in these folders of recipes names.

    `with_package`: nor any file of this package. Its functions read the keys of its recipes; a name that does not begin
    with `CM_` is there one of the process environment, where the keys of recipes are not.
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
