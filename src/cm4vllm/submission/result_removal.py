"""The removal of results from a tree, with all that only they need."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cm4vllm.common.errors import SubmissionError, nearest
from cm4vllm.common.files import bytes_of, text_of, write_json, write_text
from cm4vllm.common.progress import say
from cm4vllm.rules import Scenario, TreeLayout, layout_of_tree, round_names, round_terms
from cm4vllm.submission.published_program import remove_unnamed_programs
from cm4vllm.submission.submitter_pages import NETWORK_PAGE, SUBMITTER_PAGE, capsules, result_folders, write_overview
from cm4vllm.submission.tree_writer import TreeWriter, changed_tree, read_object, without_scenario, without_section

Place = tuple[str, str, str]


def remove_results(tree: Path, path: str, submitter: str = "") -> list[str]:
    """Remove results from a tree and return their names: `path` is SYSTEM, SYSTEM/MODEL or SYSTEM/MODEL/SCENARIO.

    Their system, mapping, pages and capsule go where no other result needs them; no other file is changed. Raises
    SubmissionError when there is no such result, or no other.
    """
    wanted = path.strip("/").lower().split("/")
    with changed_tree(tree) as writer:
        homes = [home for home in sorted(writer.root.glob(f"*/{submitter or '*'}")) if (home / "results").is_dir()]
        places = {home: result_folders(home) for home in homes}
        chosen = {
            home: [place for place in own if [part.lower() for part in place[: len(wanted)]] == wanted]
            for home, own in places.items()
        }
        there = ["/".join(place) for own in places.values() for place in own]
        if not (names := ["/".join(place) for own in chosen.values() for place in own]):
            raise SubmissionError(
                f"{tree} has no result {path}",
                remedy=nearest(path, there) or f"its results: {', '.join(there) or 'none'}",
            )
        if len(names) == len(there):
            raise SubmissionError(f"{path} is all that {tree} has", remedy="remove the folder of the tree itself")
        for home, removed in chosen.items():
            if len(removed) == len(places[home]):
                shutil.rmtree(home)
            elif removed:
                _remove(writer, home, removed)
    return names


def _remove(writer: TreeWriter, home: Path, chosen: list[Place]) -> None:
    layout = layout_of_tree(home)
    for system, model, scenario in chosen:
        for pattern in {layout.results, layout.settings, layout.compliance}:
            shutil.rmtree(home / pattern.format(system=system, model=model, scenario=scenario), ignore_errors=True)
        _pages_of(writer, home, layout, (system, model, scenario))
    left = result_folders(home)
    for part in {pattern.partition("/")[0] for pattern in (layout.results, layout.settings, layout.compliance)}:
        _remove_all_but(home / part, "*", {place[0] for place in left})
        for system in {place[0] for place in left}:
            _remove_all_but(home / part / system, "*/", {place[1] for place in left if place[0] == system})
    _remove_all_but(home / "systems", "*.json", {f"{place[0]}.json" for place in left})
    for supplies in {place.power.supplies for place in map(round_terms, round_names()) if place.power.supplies}:
        folder, _, name = supplies.rpartition("/")
        _remove_all_but(home / folder, name.format(system="*"), {name.format(system=place[0]) for place in left})
    gone = {place[1] for place in chosen} - {place[1] for place in left}
    for model in gone:
        shutil.rmtree(home / layout.program / model, ignore_errors=True)
        _change(writer, home / layout.calibration, partial(without_section, heading=model))
    for system in {place[0] for place in chosen} - {place[0] for place in left}:
        _change(writer, home / NETWORK_PAGE, partial(without_section, heading=system))
    _unmapped(writer, home / "model_mapping.json", gone)
    remove_unnamed_programs(home / layout.program)
    write_overview(writer, home, layout)


def _pages_of(writer: TreeWriter, home: Path, layout: TreeLayout, place: Place) -> None:
    """Take one result out of the pages that several results share, and remove the pages that show only this result."""
    system, model, scenario = place
    spelled = str(Scenario.parse(scenario))
    program = home / layout.program / model
    _change(writer, home / SUBMITTER_PAGE, lambda page: without_scenario(page, f"{model} on {system}", spelled))
    _change(writer, program / "README.md", lambda page: without_scenario(page, system, spelled))
    left = {place[2] for place in result_folders(home) if place[:2] == (system, model)}
    for path, scenarios in capsules(program, system).items():
        if not left & scenarios:
            path.unlink()
    for page in sorted((home / "results" / system).glob("*.html")):
        text = text_of(page)
        if f"{model} on " in text and f'id="tile-{spelled}"' in text:
            page.unlink()
            say(f"{writer.name(page)} is removed, too: it shows {model}, {spelled}")


def _change(writer: TreeWriter, page: Path, change: Callable[[str], str]) -> None:
    if page.is_file():
        writer.shared.add(writer.name(page))
        write_text(page, change(bytes_of(page).decode()))


def _remove_all_but(folder: Path, pattern: str, kept: set[str]) -> None:
    """Remove what has none of these names."""
    for path in sorted(folder.glob(pattern)):
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _unmapped(writer: TreeWriter, path: Path, gone: set[str]) -> None:
    if path.is_file() and gone & (mapping := read_object(path)).keys():
        writer.shared.add(writer.name(path))
        kept = {key: value for key, value in mapping.items() if key not in gone}
        write_json(path, kept) if kept else path.unlink()
