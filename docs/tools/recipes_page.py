"""docs/recipes.md, from the metas: `python docs/tools/recipes_page.py script > docs/recipes.md`."""

import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from cm4vllm.engine.format.meta import ScriptMeta, load_script
from cm4vllm.engine.format.meta_files import has_meta
from cm4vllm.engine.tools.help import command_lines, variations_of
from cm4vllm.engine.tools.input_lists import Row, input_lists

_HEAD = """\
# Scripts (recipes)

Generated from the scripts' metas: `python docs/tools/recipes_page.py script > docs/recipes.md`.

A script (a recipe) is run by its tags, which can be shortened as long as they match one script. `--help` shows the same
page for one script, with the values that only this machine can tell. Inputs that every script takes (`--plan`,
`--quiet`, `--env.KEY=VALUE`, …) are listed by `cm help script`.
"""
_WIDTH = 120


def recipes_page(folder: str) -> str:
    """Return docs/recipes.md for the recipes in a folder. Raises RecipeError when a meta cannot be read."""
    paths = map(str, sorted(Path(folder).iterdir()))
    return "\n".join([_HEAD, *("\n".join(_section(load_script(path, ""))) for path in paths if has_meta(path))])


def _section(script: ScriptMeta) -> Iterator[str]:
    typed = script.tags_help.strip().strip('"') or ",".join(script.tags)
    yield f"## {script.alias}\n"
    if script.purpose:
        yield from _wrap(f"{script.purpose[0].upper()}{script.purpose[1:]}.", "")
        yield ""
    for example in script.examples or [typed]:
        yield from command_lines(example, "    ", _WIDTH)
    yield ""
    for title, rows in (*_inputs(script), ("Variations", variations_of(script))):
        if rows:
            yield f"**{title}**\n"
            yield from _items(rows)
            yield ""
    if script.layer.new_env_keys:
        yield from _wrap("**Exports** " + ", ".join(f"`{key}`" for key in script.layer.new_env_keys), "")
        yield ""


def _inputs(script: ScriptMeta) -> Iterator[tuple[str, list[Row]]]:
    for title, rows in input_lists(script).items():
        yield f"Inputs: {title}".removesuffix(": "), [(shown, _with_key(script, shown, text)) for shown, text in rows]


def _with_key(script: ScriptMeta, shown: str, text: str) -> str:
    key = script.input_mapping.get(shown.lstrip("-").partition("=")[0], "")
    return f"{text}; sets `{key}`" if key and key not in text else text


def _items(rows: Iterable[Row]) -> Iterator[str]:
    for left, right in rows:
        yield from _wrap(f"- `{left.rstrip(':')}`: {right}" if left else f"- {right}", "  ")


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    print(recipes_page(sys.argv[1]), end="")
