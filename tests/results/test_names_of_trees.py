"""A tree whose names hold line feeds and escape sequences: no form of the findings shows them as more than names."""

import json
from pathlib import Path

import pytest

from cm4vllm.common.errors import SubmissionError
from cm4vllm.results.check_command.findings_output import as_objects
from cm4vllm.results.check_command.tree_check import check_tree, report_checks
from cm4vllm.results.result_index import read_index

FORGED = "error FORGED: all is lost"
NAMES = {
    "line feed": f"box\n{FORGED}",
    "carriage return": f"box\r{FORGED}",
    "line separator": f"box\u2028{FORGED}",
    "escape sequence": f"box\x1b[2J{FORGED}",
    "no text": f"box\udcff{FORGED}",
}


def made(root: Path, name: str, submitter: str = "Somebody") -> Path:
    """Make a tree with one result of a system of this name, and hardly any file."""
    home = root / "closed" / submitter
    folder = home / "results" / name / "llama2-70b-99" / "Offline"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(f"TODO\n{FORGED}\n")
    (home / "systems").mkdir()
    described = {"system_name": f"box\n{FORGED}", "framework": f"undefined\n{FORGED}", "host_networking": "-"}
    (home / "systems" / f"{name}.json").write_text(json.dumps(described))
    return root


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_forges_no_line_in_any_form(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = made(tmp_path / "tree", name)
    with pytest.raises(SubmissionError) as error:
        report_checks(root, round_name="v6.0")
    printed = capsys.readouterr().out
    assert FORGED in printed
    assert not any(line.startswith(FORGED) for line in f"{printed}\n{error.value}".splitlines())
    assert "\x1b" not in printed
    all_findings = check_tree(root, round_name="v6.0").findings
    texts = _texts(as_objects(all_findings))
    assert texts and all(text.isprintable() for text in texts)


def test_the_name_of_a_submitter_forges_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = made(tmp_path / "tree", "box", submitter=f"Somebody\n{FORGED}")
    with pytest.raises(SubmissionError):
        report_checks(root, round_name="v6.0")
    assert not any(line.startswith(FORGED) for line in capsys.readouterr().out.splitlines())
    (row,) = read_index(root, tmp_path / "kept").rows
    assert row.submitter == f"Somebody\\n{FORGED}"


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for part in value.values() for text in _texts(part)]
    return [text for part in value for text in _texts(part)] if isinstance(value, list) else []
