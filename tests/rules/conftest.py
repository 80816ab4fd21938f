"""The official checkers whose constants are compared."""

import textwrap

import pytest
from tests.rules.official_checkers import NEWEST, TABLES, constants, numbers_of, show


@pytest.fixture(scope="module")
def newest():
    folder = "tools/submission/submission_checker"
    text = show(NEWEST, f"{folder}/constants.py")
    return (
        constants(text, *TABLES)
        | numbers_of(text)
        | {
            "methods": show(NEWEST, f"{folder}/configuration/configuration.py"),
            "compliance": show(NEWEST, f"{folder}/checks/compliance_check.py"),
            "performance": show(NEWEST, f"{folder}/checks/performance_check.py"),
            "mlperf.conf": show(NEWEST, "loadgen/mlperf.conf"),
        }
    )


@pytest.fixture(scope="module")
def of_v41():
    text = show("v4.1", "tools/submission/submission_checker.py")
    start = text.index('    test_list = ["TEST01"')
    return (
        constants(text, *TABLES)
        | numbers_of(text)
        | {
            "methods": text,
            "tests": textwrap.dedent(text[start : text.index("    if test_list and not", start)]),
            "mlperf.conf": show("v4.1", "mlperf.conf"),
        }
    )
