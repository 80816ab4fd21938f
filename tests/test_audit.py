"""The audit of pinned packages: what could not be audited is never counted as clean."""

import sys
from pathlib import Path

import pytest

import audit

CLEAN = {"name": "six", "version": "1.17.0", "vulns": []}
UNKNOWN = {"name": "mine", "skip_reason": "Dependency not found"}
VULNERABLE = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}


@pytest.mark.parametrize(
    ("packages", "words", "lenient", "strict"),
    [
        ([CLEAN], "1 packages audited, no known vulnerabilities", 0, 0),
        ([CLEAN, UNKNOWN], "1 NOT AUDITED: mine: Dependency not found", 0, 1),
        ([UNKNOWN, UNKNOWN], "0 packages audited; 2 NOT AUDITED", 0, 1),
        ([CLEAN, UNKNOWN, VULNERABLE], "VULNERABLE: old 1.0: PYSEC-1, fixed in 1.1", 1, 1),
    ],
)
def test_each_outcome_has_its_words_and_status(packages, words, lenient, strict):
    outcome = audit.outcome("requirements.txt", {"dependencies": packages})
    assert words in outcome.words
    assert (audit.status([outcome], strict=False), audit.status([outcome], strict=True)) == (lenient, strict)


def tool(tmp_path: Path, code: str) -> Path:
    path = tmp_path / "pip-audit"
    path.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("sys.exit('Connection to the service failed')", "all packages: Connection to the service failed"),
        (None, "pip-audit cannot be run"),
    ],
)
def test_a_service_that_cannot_be_reached_is_said_and_fails_only_a_strict_audit(tmp_path, capsys, code, reason):
    command = tool(tmp_path, code) if code else tmp_path / "missing"
    pins = tmp_path / "pins.txt"
    pins.write_text("six==1.17.0\n")
    assert audit.main([str(command), str(pins)]) == 0
    printed = capsys.readouterr().out
    assert "NOT AUDITED" in printed
    assert reason in printed
    assert audit.main(["--strict", str(command), str(pins)]) == 1


def test_an_outcome_is_kept_for_the_same_pins_alone(tmp_path, capsys):
    pins, kept = tmp_path / "pins.txt", tmp_path / "kept.json"
    pins.write_text("six==1.17.0\n")
    command = tool(tmp_path, """print('{"dependencies": [{"name": "six", "version": "1.17.0", "vulns": []}]}')""")
    assert audit.main([f"--kept={kept}", str(command), str(pins)]) == 0
    command.unlink()
    assert audit.main([f"--kept={kept}", str(command), str(pins)]) == 0
    assert "NOT AUDITED" not in capsys.readouterr().out
    pins.write_text("six==1.16.0\n")
    audit.main([f"--kept={kept}", str(command), str(pins)])
    assert "NOT AUDITED" in capsys.readouterr().out
