"""Which cm4vllm this is."""

from __future__ import annotations

from pathlib import Path

from cm4vllm.common.processes import run

__all__ = ["commit_of_this_repository"]


def commit_of_this_repository() -> str:
    """Return the git commit that this code runs from, with `+changes` when files differ; empty outside a checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return ""
    try:
        commit = run(["git", "rev-parse", "HEAD"], cwd=root)
        changes = run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=root)
    except FileNotFoundError:
        return ""
    if not commit.ok:
        return ""
    return commit.output.strip() + ("+changes" if changes.output.strip() else "")
