"""The writer of a tree's files: none is ever written over with other content, and pages and mappings are shared.

Several results go into one tree. What two of them say of the same thing has to be the same; where it is not, they
contradict each other, and the tree is refused. A tree is changed on a copy beside it, which is renamed to the tree's
name when it is whole.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cm4vllm.common.bounded_documents import read_json
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import bytes_of, sha256_of, write_bytes, write_json, write_text
from cm4vllm.common.folders.owned_folders import recover, staged_folder
from cm4vllm.common.folders.ownership_notes import Kind, entries, foreign
from cm4vllm.common.programs.own_program import MANIFEST
from cm4vllm.common.terminal_text import first_of
from cm4vllm.rules import Division

#: The recipe that builds and changes trees.
GENERATE = "generate,mlperf,inference,submission"
_APART = (
    "results of one tree agree in everything that they share: measure them with the same settings\n"
    "or remove what is in the tree: --tags=generate,mlperf,inference,submission --remove=SYSTEM\n"
    "or make another tree: --tags=generate,mlperf,inference,submission --submission_dir=DIR"
)


class TreeWriter:
    """Writes below `root`, the folder that holds the divisions. `shared` are the files that several results change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shared: set[str] = set()

    def json(self, path: Path, value: Mapping[str, Any]) -> None:
        """Write an object as JSON. Raises SubmissionError where the tree has another one in its place."""
        if path.is_file():
            refuse_other(self.name(path), read_object(path), value)
        else:
            write_json(path, value)

    def bytes(self, path: Path, content: bytes) -> None:
        """Write a file. Raises SubmissionError where the tree has another one in its place."""
        if not path.exists():
            write_bytes(path, content)
        elif not path.is_file() or path.stat().st_size != len(content) or bytes_of(path, len(content)) != content:
            raise self._difference_error(path)

    def section(self, path: Path, title: str, heading: str, body: str, *, renew: bool = False) -> None:
        """Add a part to a page, which begins with `title` where it is new.

        Raises SubmissionError where the page has another part of that heading, unless it is to be made again.
        """
        self.shared.add(self.name(path))
        page = bytes_of(path).decode() if path.is_file() else f"{title.strip()}\n"
        there = dict(sections(page)).get(heading)
        if there is not None and not renew and there.strip() != f"## {heading}\n\n{body.strip()}":
            raise self._difference_error(path, f"its part {heading!r} has another text")
        write_text(path, with_section(page, heading, body))

    def mapping(self, path: Path, values: Mapping[str, str]) -> None:
        """Add entries to an object. Raises SubmissionError where it has another value for one of them."""
        self.shared.add(self.name(path))
        there = read_object(path) if path.is_file() else {}
        refuse_other(
            self.name(path),
            {key: there[key] for key in there if key in values},
            {key: values[key] for key in values if key in there},
        )
        write_json(path, {**there, **values})

    def name(self, path: Path) -> str:
        """Return a path as messages and lists name it."""
        return path.relative_to(self.root).as_posix()

    def _difference_error(self, path: Path, cause: str = "the file in the tree has other content") -> SubmissionError:
        return SubmissionError(
            f"the results contradict what the tree has in {self.name(path)}", cause=cause, remedy=_APART
        )


def refuse_other(name: str, there: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise SubmissionError where two objects differ, with the keys in which they do."""
    if keys := [key for key in {**there, **given} if there.get(key) != given.get(key)]:
        apart = "\n".join(f"{key}: {there.get(key)!r} in the tree, {given.get(key)!r} in the results" for key in keys)
        raise SubmissionError(f"the results contradict what the tree has in {name}", cause=apart, remedy=_APART)


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises SubmissionError where it holds none."""
    try:
        value = read_json(path)
    except (OSError, ValueError) as error:
        raise SubmissionError(f"{path} cannot be read", cause=str(error), remedy="build the tree again") from error
    if not isinstance(value, dict):
        raise SubmissionError(f"{path} holds no JSON object", remedy="build the tree again")
    return value


def tree_kind(submitter: str, flag: str = "--submission_dir") -> Kind:
    """Return how a tree of a submitter is recognised: by the program in it. What others submit is not replaced.

    That holds for any submitter in the tree, also where an earlier command of cm4vllm wrote the files.
    """

    def of_others(tree: Path) -> str:
        """Return why a tree is not replaced: it holds submissions of others; empty if not."""
        homes = {tuple(name.rstrip("/").split("/")[:2]) for name in entries(tree) if name.count("/") > 1}
        others = sorted("/".join(home) for home in homes if home[0] in set(Division) and home[1] != submitter)
        return f"it holds the submission of others: {first_of(others, 4)}" if others and submitter else ""

    return Kind(
        "a submission tree",
        flag,
        recognised=lambda tree: any(tree.glob(f"*/*/*/cm4vllm*/{MANIFEST}")),
        refused=of_others,
    )


@contextmanager
def new_tree(tree: Path, submitter: str) -> Iterator[TreeWriter]:
    """Yield a writer to a new tree, which takes the place of `tree` when the block ends well.

    Raises UsageError for a folder that is not replaced.
    """
    with staged_folder(tree, tree_kind(submitter)) as staging:
        yield TreeWriter(staging)


@contextmanager
def changed_tree(tree: Path) -> Iterator[TreeWriter]:
    """Yield a writer to a copy of `tree`, which takes its place when the block ends well.

    No file may become another one but those that the writer counts as shared; a file may go. Raises SubmissionError
    where there is no tree, and where another file was changed: nothing of it is kept then.
    """
    recover(tree)
    if not tree.is_dir():
        raise SubmissionError(f"no submission in {tree}", remedy=f"build it first: --tags={GENERATE} without --add")
    before = digests(tree)
    with staged_folder(tree, carried=foreign(tree)) as staging:
        shutil.copytree(tree, staging, dirs_exist_ok=True, symlinks=True)
        for path in (staging, *staging.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o200)  # published trees may be for reading only
        writer = TreeWriter(staging)
        yield writer
        after = digests(staging)
        changed = sorted(
            name
            for name, digest in before.items()
            if name in after and after[name] != digest and name not in writer.shared
        )
        if changed or digests(tree) != before:
            raise SubmissionError(
                f"{tree} was not changed",
                cause=f"files that belong to other results would differ: {', '.join(changed[:5])}"
                if changed
                else "another program changed files in it",
                remedy="run it again, and let no other program write to the tree",
            )


def digests(tree: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a tree by its path."""
    return {path.relative_to(tree).as_posix(): sha256_of(path) for path in sorted(tree.rglob("*")) if path.is_file()}


_FENCE = re.compile(r"^\s{0,3}(`{3,}|~{3,})")


def heading_of(name: str, scenarios: Iterable[str]) -> str:
    """Return the heading of the part that results of these scenarios make."""
    return f"{name}: {', '.join(scenarios)}"


def sections(page: str) -> list[tuple[str, str]]:
    """Return the parts of a page: heading and whole text; the first, of heading "", is what comes before all of them.

    The texts put together are the page.
    """
    parts: list[tuple[str, list[str]]] = [("", [])]
    fence = ""
    for line in page.splitlines(keepends=True):
        if match := _FENCE.match(line):
            mark = match[1]
            fence = mark if not fence else "" if mark.startswith(fence) else fence
        if not fence and line.startswith("## "):
            parts.append((line[3:].strip(), []))
        parts[-1][1].append(line)
    return [(heading, "".join(lines)) for heading, lines in parts]


def with_section(page: str, heading: str, body: str) -> str:
    """Return the page with this part: in the place of the part of that heading, otherwise at the end."""
    parts = sections(page)
    text = f"## {heading}\n\n{body.strip()}\n"
    if heading in {name for name, _ in parts}:
        last = len(parts) - 1
        return "".join(
            part if name != heading else text + ("\n" if number < last else "")
            for number, (name, part) in enumerate(parts)
        )
    return f"{page.rstrip()}\n\n{text}" if page.strip() else text


def without_section(page: str, heading: str) -> str:
    """Return the page without the part of that heading."""
    return "".join(text for name, text in sections(page) if name != heading).rstrip() + "\n"


def without_scenario(page: str, name: str, scenario: str) -> str:
    """Return the page without a scenario in the headings of the parts of `name`; without the parts of no other."""
    kept = []
    for heading, text in sections(page):
        before, colon, listed = heading.rpartition(": ")
        if colon and before == name and scenario in (left := listed.split(", ")):
            left.remove(scenario)
            if not left:
                continue
            text = text.replace(f"## {heading}", f"## {heading_of(name, left)}", 1)
        kept.append(text)
    return "".join(kept).rstrip() + "\n"
