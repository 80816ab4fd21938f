"""The public format's behaviours, each by scripts of its own (cases.yaml), with what must come out.

With CM4MLOPS=<checkout of cm4mlops> the same scripts run under its engine too: it must give the same, or, where its
answer is a fault that this engine does not copy, what `theirs` says.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engine.conformance.conftest import Engine, engine_alone


@dataclass
class Case:
    """Scripts by alias (their metas, with `files`), the requests, and the expected answer to the last one."""

    scripts: dict[str, dict[str, Any]]
    asked: list[dict[str, Any]] | dict[str, Any]
    gives: dict[str, Any] | None = field(default_factory=dict)
    code: int = 0
    entries: int | None = None
    output: str = ""
    theirs: dict[str, Any] | None = None


TEXT = Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8")
CASES = {name: Case(**parts) for name, parts in yaml.safe_load(TEXT).items()}


def written(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Write the scripts of all cases, each case under tags of its own, and return the requests."""
    asked = {}
    number = 0
    for place, (name, case) in enumerate(CASES.items()):
        for alias, parts in case.scripts.items():
            number += 1
            meta = {
                "alias": f"c{place}-{alias}",
                "uid": f"{number:015x}b",
                "automation_alias": "script",
                "automation_uid": "5b4e0237da074764",
                "tags": [alias],
                "new_env_keys": ["CM_*"],
                **{key: part for key, part in parts.items() if key != "files"},
            }
            meta["tags"] = [f"c{place}", *meta["tags"]]
            path = folder / "script" / meta["alias"]
            path.mkdir(parents=True)
            for phase in ("deps", "prehook_deps", "posthook_deps", "post_deps"):
                if phase in meta:
                    meta[phase] = [{**entry, "tags": f"c{place},{entry['tags']}"} for entry in meta[phase]]
            (path / "_cm.yaml").write_text(yaml.safe_dump(meta, sort_keys=False))
            for file, text in parts.get("files", {}).items():
                (path / file).write_text(text)
        requests = case.asked if isinstance(case.asked, list) else [case.asked]
        asked[name] = [{**request, "tags": f"c{place},{request['tags']}"} for request in requests]
    (folder / "cmr.yaml").write_text('alias: cases\nuid: "00000000000000f3"\n')
    return asked


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return the answers to all cases by engine, the incumbent's where there is one."""
    folder = tmp_path_factory.mktemp("behaviours")
    sides = {"ours": engine_alone(folder / "our engine")}
    if named := os.environ.get("CM4MLOPS"):
        sides["theirs"] = engine_alone(folder / "their engine", Path(named).resolve())
    asked = written(folder / "cases")
    return {
        side: Engine(folder / side, repository, folder / "cases").answers(with_folder(asked, folder / f"{side}.d"))
        for side, repository in sides.items()
    }


def with_folder(asked, folder):
    """Replace (tmp) in environments by a folder."""
    folder.mkdir()
    return {
        name: [
            {
                **request,
                "env": {key: value.replace("(tmp)", str(folder)) for key, value in request.get("env", {}).items()},
            }
            for request in requests
        ]
        for name, requests in asked.items()
    }


def check(case: Case, answer: dict[str, Any], expected: dict[str, Any]) -> None:
    assert answer["return"] == expected["code"], answer["error"]
    if expected["gives"] is not None and not expected["code"]:
        env = {
            key: str(value)
            for key, value in (answer["new_env"] or {}).items()
            if key not in ("CM_QUIET", "CM_TMP_PIP_VERSION_STRING") and not key.startswith("CM_TMP_")
        }
        assert env == expected["gives"]
    if expected["entries"] is not None:
        assert len([entry for entry in answer["entries"] if "tmp" not in entry["tags"]]) == expected["entries"]
    if "nonexistent" in str(case.asked):
        assert "no scripts were found" in answer["error"]


@pytest.mark.parametrize("name", CASES)
def test_behaviour(answers, name):
    case = CASES[name]
    expected = {"code": case.code, "gives": case.gives, "entries": case.entries}
    check(case, answers["ours"][name][-1], expected)
    if "theirs" in answers:
        check(case, answers["theirs"][name][-1], {**expected, **(case.theirs or {})})
