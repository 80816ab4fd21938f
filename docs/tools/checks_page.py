"""The page of all codes, docs/checks.md, written from the checks themselves: `python docs/tools/checks_page.py`."""

import textwrap
from collections.abc import Iterator

from cm4vllm.endpoints.curve_checks import CURVE_CHECKS
from cm4vllm.results.checks import CHECKS, CheckBase, Stage
from cm4vllm.results.copied_logs import ACROSS
from cm4vllm.results.findings import Rule
from cm4vllm.results.log_folders import PROBLEMS

_HEAD = """\
# The codes of findings

Written from the code: `python docs/tools/checks_page.py > docs/checks.md`. The severity is the usual one of a check:
where a case deserves another, the finding has it. An error refuses a submission, a warning is doubtful, a note is
allowed and worth knowing. A check that cannot be made is the finding CHECK-FAILED; all others are made.

    cm run script --tags=check,mlperf,results --input=TREE [--out=json] [--sarif=FILE]

prints every finding in TREE and ends with 0 where none is an error, with 60 where one is; 60 is
also that of a folder without a submission, 20 that of a folder that does not exist. What is found in a submission of
400 files or more is kept in `~/.cache/cm4vllm/checks` (or below `XDG_CACHE_HOME`) and used again while cm4vllm and the
names, sizes, inodes and times of all its files are the same, the times of change (ctime) too, which no program sets as
it likes. Findings are not kept where a file was changed in the last two seconds or a link leads to a folder elsewhere.

The first line and the last one say to how many of the results the rules of a benchmark were applied; `coverage` of the
JSON output, and of the properties of the SARIF log's run, has both numbers. What is left has a finding: a benchmark or
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
                yield from _check(check)
    yield "## Curves of MLPerf Endpoints: run folders and bundles of anyone\n"
    yield "Of `check,mlperf,endpoints --input=FOLDER` ([MLPerf Endpoints](endpoints.md#checks)).\n"
    for curve_check in CURVE_CHECKS.values():
        yield from _check(curve_check)
    yield "## All submissions of a tree together\n"
    for across in ACROSS:
        yield from _check(across)
    yield "## What cannot be read\n"
    for code, rule in PROBLEMS.items():
        yield from _section(code, rule)


def _check(check: CheckBase) -> Iterator[str]:
    return _section(check.code, check.rule, severity=check.severity, remedy=check.remedy)


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
