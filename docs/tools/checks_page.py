"""The page of all codes, docs/checks.md, written from the checks themselves: `python docs/tools/checks_page.py`."""

import textwrap
from collections.abc import Iterator

from cm4vllm.common.checking.checks import Stage
from cm4vllm.common.checking.findings import Rule
from cm4vllm.results.checks import CHECKS
from cm4vllm.results.log_folders import PROBLEMS

_HEAD = """\
# The codes of findings

Written from the code: `python docs/tools/checks_page.py > docs/checks.md`. The severity is the usual one of a check:
where a case deserves another, the finding has it. An error refuses a submission, a warning is doubtful, a note is
allowed and worth knowing. A check that cannot be made is the finding CHECK-FAILED; all others are made.

    cm run script --tags=check,mlperf,results --input=TREE [--out=json]

prints every finding in TREE and ends with 0 where none is an error, with 60 where one is; 60 is
also that of a folder without a submission, 20 that of a folder that does not exist.

The first line and the last one say to how many of the results the rules of a benchmark were applied; `coverage` of the
JSON output has both numbers. What is left has a finding: a benchmark or
scenario without rules (`RULES-UNKNOWN`), seeds of no round (`ROUND-UNKNOWN`), or a log that cannot be read.

    cm run script --tags=check,mlperf,results --input=TREE --weights=FOLDER [--weights_of=SYSTEM/MODEL]

compares the weights in FOLDER with what the tree claims of them: the headers of the safetensors files with the stated
type and with the number of parameters of the model, and the digests of whole files with those that MLCommons publishes,
or with the digest that the tree states. Without the last flag the tree's results are of one model.
"""
_WIDTH = 120
_STAGES = {
    Stage.TREE: "A written submission tree, ours or anyone's",
    Stage.ALWAYS: "Whatever was measured: our run folders, and trees where they have what the check needs",
    Stage.SUBMITTED: "Our runs before a submission tree is made of them",
    Stage.CURVE: "Curves of MLPerf Endpoints: run folders and bundles of anyone\n\n"
    "Of `check,mlperf,endpoints --input=FOLDER` ([MLPerf Endpoints](endpoints.md#checks)).",
    Stage.ACROSS: "All submissions of a tree together",
}


def codes_page() -> str:
    """Return the text of docs/checks.md."""
    return "\n".join(_lines()).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    for stage, title in _STAGES.items():
        yield f"## {title}\n"
        for check in CHECKS.values():
            if check.stage is stage:
                yield from _section(check.code, check.rule, severity=check.severity, remedy=check.remedy)
    yield "## What cannot be read\n"
    for code, rule in PROBLEMS.items():
        yield from _section(code, rule)


def _section(code: str, rule: Rule, severity: str = "", remedy: str = "") -> Iterator[str]:
    """Yield a heading for a code, so that it can be linked, and a line for each thing that is said of it."""
    yield f"### `{code}`\n"
    said = (("severity", severity), ("must hold", rule.text), ("stated in", rule.source), ("what to do", remedy))
    for title, text in said:
        if text:
            yield textwrap.fill(
                f"- {title}: {text}", _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
    yield ""


if __name__ == "__main__":
    print(codes_page(), end="")
