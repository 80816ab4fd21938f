"""The findings in the published v4.1 tree: the same as in benchmarks/checks-published.md, code by code."""

import re
from collections import Counter
from pathlib import Path

import published_findings
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.check_command.tree_check import check_tree

PAGE = Path(__file__).parents[2] / "benchmarks" / "checks-published.md"
ROW = re.compile(r"^- `([A-Z-]+)` \((error|warning|note), (\d+)\): ", re.MULTILINE)


def findings(neural_magic):
    return check_tree(neural_magic.parents[1]).findings


def test_the_page_has_every_code_with_its_count(neural_magic):
    stated = {(code, severity): int(count) for code, severity, count in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert Counter((finding.code, str(finding.severity)) for finding in findings(neural_magic)) == stated


def test_each_error_names_file_field_value_and_what_was_expected(neural_magic):
    for finding in findings(neural_magic):
        if finding.severity is Severity.ERROR:
            assert (finding.value and finding.expected and finding.remedy) or finding.code == "PROGRAM-MISSING", finding
        assert (neural_magic.parents[1] / finding.file).exists(), finding.file


def test_the_doubled_tokens_are_those_of_one_result(neural_magic):
    (doubled,) = [finding for finding in findings(neural_magic) if finding.code == "TOKENS-DOUBLED"]
    assert (doubled.value, "GPTQ" in doubled.file, "64 bits" in doubled.what) == ("586.9", True, True)


def test_the_tables_of_the_page_are_printed_by_a_command(neural_magic, capsys):
    published_findings.main([str(neural_magic.parents[1])])
    text = capsys.readouterr().out
    assert "| v4.1 | 192 | 1 | 10 | 10 | 33 |" in text
    assert "| `README-UNIT` | error | 7 |" in text and "| `FILE-EMPTY` | note | 30 |" in text
    assert "| v4.1 | open/NeuralMagic | `WEIGHTS-TYPES` | 5 |" in text
