"""`--help` of every recipe: it fits 100 columns and has purpose, inputs, variations, examples and exports."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from cm4vllm.engine.format.inputs import INPUT_TYPES
from cm4vllm.engine.format.meta import ScriptMeta, load_script
from cm4vllm.engine.tools.help import describe

ROOT = Path(__file__).resolve().parents[2]
RECIPES = [path.name for path in sorted((ROOT / "script").iterdir()) if (path / "_cm.yaml").is_file()]


@cache
def recipe(name: str) -> ScriptMeta:
    return load_script(str(ROOT / "script" / name), "cm4vllm")


def page(name: str, monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    return describe(recipe(name)).splitlines()


def too_long(lines: list[str]) -> list[str]:
    """Return the lines of more than 100 columns; the folder of the recipe is this machine's."""
    return [line for line in lines if len(line) > 100 and not line.startswith("  path ")]


def part(lines: list[str], title: str) -> list[str]:
    """Return the lines of a part of the page, which an empty line ends."""
    if f"  {title}" not in lines:
        return []
    rest = lines[lines.index(f"  {title}") + 1 :]
    return rest[: rest.index("")] if "" in rest else rest


@pytest.mark.parametrize("name", RECIPES)
def test_a_page_is_whole_and_fits(name, monkeypatch):
    lines, script = page(name, monkeypatch), recipe(name)
    assert too_long(lines) == []
    assert lines[1] == f"  {script.purpose}" and script.purpose
    assert any(line.startswith("  cm run script --tags=") for line in lines)
    assert part(lines, "gives")
    shown = "\n".join(part(lines, "inputs"))
    for flag in {*script.input_mapping, *script.input_description}:
        assert f"--{flag}" in shown
    grouped = {word for line in part(lines, "variations") for word in line.replace(",", " ").split()}
    assert {f"_{one}" for one in script.variations if "," not in one} <= grouped


@pytest.mark.parametrize("name", RECIPES)
def test_every_input_is_explained_with_its_values_and_default(name, monkeypatch):
    script, shown = recipe(name), " ".join(" ".join(page(name, monkeypatch)).split())
    for flag in script.input_mapping:
        entry = script.input_description.get(flag)
        assert isinstance(entry, dict), f"--{flag} is not described"
        assert entry["desc"], f"--{flag} has no help"
        assert entry["type"] in INPUT_TYPES
        if "same_as" not in entry:
            assert all(str(choice) in shown for choice in entry.get("choices", ()))
            assert str(entry.get("default", "")) in shown


def test_a_long_line_is_found(monkeypatch):
    assert too_long(page("run-mlperf-inference-app", monkeypatch, columns=140))


def test_a_long_example_can_be_pasted(monkeypatch):
    lines = page("find-mlperf-inference-target-qps", monkeypatch)
    first = next(place for place, line in enumerate(lines) if line.startswith("  cm run script"))
    assert lines[first].endswith(" \\")
    last = next(place for place in range(first, len(lines)) if not lines[place].endswith("\\"))
    pasted = " ".join(line.rstrip("\\").strip() for line in lines[first : last + 1])
    assert pasted == f"cm run script --tags={recipe('find-mlperf-inference-target-qps').examples[0]}"
