"""The tables of benchmarks/checks-published.md: findings of the checks in whole rounds, by code and folder.

`python docs/tools/published_findings.py inference_results_v4.1 inference_results_v5.1 ...`, each the folder of a
checked out repository of results.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from cm4vllm.common.checking.findings import Finding, Severity
from cm4vllm.results.check_command.tree_check import CheckedTree, check_tree


def covered(trees: Sequence[tuple[str, CheckedTree]]) -> Iterator[str]:
    """Yield what was checked in each round."""
    yield from _table(
        ("round", "files", "submissions", "results", "rules applied", *(f"{level}s" for level in Severity)),
        (
            (
                name,
                f"{sum(submission.files for submission in tree.submissions):,}",
                len(tree.submissions),
                f"{tree.coverage['results']:,}",
                f"{tree.coverage['rules_applied']:,}",
                *(f"{sum(finding.severity is level for finding in tree.findings):,}" for level in Severity),
            )
            for name, tree in trees
        ),
    )


def by_code(trees: Sequence[tuple[str, CheckedTree]]) -> Iterator[str]:
    """Yield the number of findings of each code and severity in each round, errors first."""
    counted = [Counter((finding.severity, finding.code) for finding in tree.findings) for _, tree in trees]
    order = sorted(set().union(*counted), key=lambda key: (list(Severity).index(key[0]), key[1]))
    rows = ((f"`{code}`", level, *(counts[level, code] for counts in counted)) for level, code in order)
    yield from _table(("code", "severity", *(name for name, _ in trees)), rows)


def by_folder(trees: Sequence[tuple[str, CheckedTree]]) -> Iterator[str]:
    """Yield the errors of each submission, by code, with the number of its findings."""
    yield from _table(
        ("round", "folder", "code", "errors"),
        (
            (name, folder, f"`{code}`", count)
            for name, tree in trees
            for (folder, code), count in sorted(Counter(map(_place, _errors(tree))).items())
        ),
    )


def _errors(tree: CheckedTree) -> Iterator[Finding]:
    yield from (finding for finding in tree.findings if finding.severity is Severity.ERROR)


def _place(finding: Finding) -> tuple[str, str]:
    return "/".join(finding.file.split("/")[:2]), finding.code


def _table(head: Sequence[str], rows: Iterator[Sequence[object]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(map(str, row))} |"


def main(arguments: Sequence[str]) -> None:
    """Check the trees in these folders, and print the tables."""
    trees = []
    for folder in map(Path, arguments):
        tree = check_tree(folder)
        rounds = Counter(submission.round for submission in tree.submissions if submission.round)
        trees.append((max(rounds, key=lambda name: rounds[name], default=folder.name), tree))
    for table in (covered, by_code, by_folder):
        print("\n".join(table(trees)), end="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
