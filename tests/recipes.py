"""The recipes of this checkout; a process reads each of their metas once."""

from functools import cache
from pathlib import Path

from cm4vllm.engine.format.meta import ScriptMeta, load_script
from cm4vllm.engine.format.meta_files import read_meta

FOLDER = Path(__file__).resolve().parents[1] / "script"
_read = cache(read_meta)


@cache
def recipe(name: str) -> ScriptMeta:
    """Return the recipe in a folder of script/."""
    return load_script(str(FOLDER / name), "cm4vllm", _read)


@cache
def recipes() -> dict[str, ScriptMeta]:
    """Return all recipes by the names of their folders."""
    return {path.parent.name: recipe(path.parent.name) for path in sorted(FOLDER.glob("*/_cm.yaml"))}
