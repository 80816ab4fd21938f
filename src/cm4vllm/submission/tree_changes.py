"""Changes of a tree: they are made on a copy beside it, which is renamed to the tree's name when it is whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import sha256_of, staged_folder
from cm4vllm.submission.tree_writer import GENERATE, TreeWriter

__all__ = ["changed_tree", "digests", "new_tree", "recover"]


@contextmanager
def new_tree(tree: Path) -> Iterator[TreeWriter]:
    """Give a writer to a new tree, which takes the place of `tree` when the block ends well."""
    with staged_folder(tree) as staging:
        yield TreeWriter(staging)


@contextmanager
def changed_tree(tree: Path) -> Iterator[TreeWriter]:
    """Give a writer to a copy of `tree`, which takes its place when the block ends well.

    No file may become another one but those that the writer counts as shared; a file may go. Raises SubmissionError
    where there is no tree, and where another file was changed: nothing of it is kept then.
    """
    recover(tree)
    if not tree.is_dir():
        raise SubmissionError(f"no submission in {tree}", remedy=f"build it first: --tags={GENERATE} without --add")
    before = digests(tree)
    with staged_folder(tree) as staging:
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


def recover(tree: Path) -> None:
    """Give a tree its name back that a killed run had moved aside: it is whole, and was about to be replaced."""
    aside = tree.with_name(f"{tree.name}.old")
    if aside.is_dir() and not tree.exists():
        aside.rename(tree)


def digests(tree: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a tree by its path."""
    return {path.relative_to(tree).as_posix(): sha256_of(path) for path in sorted(tree.rglob("*")) if path.is_file()}
