"""Rules renewed from a release of the official checker and from files, and what that means for a kept curve."""

import zipfile
from datetime import date

import pytest
import yaml
from made_points import write_points

from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import json_text, write_text
from cm4vllm.endpoints.rules_source import RenewalSettings, known_rules, last_renewal, renew_rules
from cm4vllm.results.endpoints.rules_changes import ExplainSettings, explain_rules
from cm4vllm.rules import RulesInputs, endpoints_rules, plain_rules, read_rules

pytestmark = pytest.mark.usefixtures("any_day")

SETS = {"cohort": {"cohort-id": "2026-12-C1", "seed_sets": [{"id": "B", "scheduler_rng_seed": 1}]}}
SETS["cohort"]["seed_sets"][0] |= {"sample_index_rng_seed": 2, "model_seed": 3}
DRAFTERS = {"drafters": [{"benchmark": "llama3_1-8b", "approved_cohort": "2026-12-C0", "weight_checksum": "x"}]}
DAY = (2026, 12, 17, 8, 0, 0)


def wheel(folder, version="1.6.0.0", sets=SETS, package="endpoints_submission_cli"):
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        files = {
            f"{package}-{version}.dist-info/METADATA": "",
            "submission_checker/data/seed_sets.yaml": yaml.safe_dump(sets),
            "submission_checker/data/approved_drafters.yaml": yaml.safe_dump(DRAFTERS),
        }
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, DAY), content)
    return path


def test_rules_are_renewed_from_the_data_of_a_release_and_the_doctor_names_them(tmp_path, capsys):
    path = renew_rules(RenewalSettings(checker_wheel=str(wheel(tmp_path))), tmp_path)
    rules = read_rules(path)
    assert [entry.name for entry in rules.seed_sets] == ["A", "B"]
    assert (rules.dated, rules.checker.version, len(rules.drafters)) == ("2026-12-17", "1.6.0.0", 1)
    assert rules.seed_sets[1].source.startswith("endpoints-submission-cli-1.6.0.0_seed_sets.yaml, SHA-256 ")
    assert "seed sets: A: from 2026-10-C1 to 2026-12-C0; B: from 2026-12-C1 to 2027-02-C0" in capsys.readouterr().out
    assert last_renewal(tmp_path) == path
    lines = "\n".join(known_rules(tmp_path, date(2027, 1, 4)))
    assert "cohort over: no published seed set is for the cohort 2027-01-C0" in lines
    assert "open cohort: 2027-01-C0, seed set B" in lines and f"--rules={path}" in lines
    assert "not renewed here" in "\n".join(known_rules(tmp_path / "new", date(2027, 1, 4)))


@pytest.mark.parametrize("given", ["none.whl", "text.whl", "other-1.0-py3-none-any.whl"])
def test_another_file_is_no_release_of_the_checker(tmp_path, given):
    (tmp_path / "text.whl").write_text("no archive")
    wheel(tmp_path, "1.0", package="other")
    with pytest.raises(UsageError, match="is no release of endpoints-submission-cli"):
        renew_rules(RenewalSettings(checker_wheel=str(tmp_path / given)), tmp_path)
    assert last_renewal(tmp_path) is None


def test_what_changed_and_which_points_get_another_verdict_is_said(tmp_path, capsys):
    write_points(tmp_path / "points")
    write_text(tmp_path / "older.json", json_text(plain_rules(endpoints_rules())))
    (tmp_path / "sets.yaml").write_text(yaml.safe_dump({"cohort": SETS["cohort"] | {"cohort-id": "2026-11-C1"}}))
    settings = ExplainSettings(
        since=str(tmp_path / "older.json"),
        folder=str(tmp_path / "points"),
        rules=RulesInputs(seed_sets_file=str(tmp_path / "sets.yaml")),
    )
    said = explain_rules(settings)
    assert [line.partition(":")[0] for line in said["changes"]] == ["seed_sets.B"]
    assert any("not submittable now" in line for line in said["verdicts"])
    same = explain_rules(ExplainSettings(since=str(tmp_path / "older.json")))
    assert same == {"changes": [], "verdicts": []}
    assert "kept results: none named" in capsys.readouterr().out
    with pytest.raises(UsageError, match="no older rules were given"):
        explain_rules(ExplainSettings())
