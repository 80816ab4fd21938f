"""Files of a step's failed and aborted attempts: kept aside in a folder of their own, and never counted."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from cm4vllm.campaign.kept_results import result_folder
from cm4vllm.campaign.ledger import ATTEMPTS, free_name
from cm4vllm.campaign.steps import key_of
from cm4vllm.loadgen.process.kept_answers import file_of
from cm4vllm.results.rate_search_record import SEARCH_FILE

__all__ = ["forget_answers", "set_aside"]

#: The files that a killed and a failed run leave beside the folder of their result.
_LEFT = (".partial", ".failed")


def set_aside(out: Path, step: str, inputs: Mapping[str, str], *, server_died: bool = False) -> str:
    """Move what an attempt of a step left to a folder among the attempts, with the log of a server that died.

    Only what lies below `out` is moved, whatever the inputs say: those of the ledger of a copied folder may name the
    folder that was copied, where another job works. Returns the folder's name below `out`, empty where nothing was
    left. Raises OSError.
    """
    target = free_name(out / ATTEMPTS, key_of(step))
    for folder in _remains(out, inputs):
        place = target / folder.name if target.exists() else target
        place.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(place)
    if server_died:
        for log in sorted((out / "server").rglob("*.log")):
            target.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                shutil.copy2(log, target / "-".join(log.relative_to(out / "server").parts))
    return str(target.relative_to(out)) if target.exists() else ""


def forget_answers(inputs: Mapping[str, str]) -> None:
    """Remove the answers that are kept of a run, whose folder is among the inputs of its step."""
    if (folder := result_folder(inputs)) is not None:
        with contextlib.suppress(OSError):
            file_of(folder).unlink(missing_ok=True)


def _remains(out: Path, inputs: Mapping[str, str]) -> Iterator[Path]:
    folder = result_folder(inputs)
    if folder is None or not _is_below(out, folder := out / folder):
        return
    for ending in _LEFT:
        if (left := folder.with_name(f"{folder.name}{ending}")).is_dir():
            yield left
    if list(folder.glob("probe-*")) and not (folder / SEARCH_FILE).exists():
        yield folder  # of a search that did not end


def _is_below(out: Path, folder: Path) -> bool:
    """Tell whether a folder lies below another, and is reached from there through plain folders only."""
    if not folder.is_relative_to(out):
        return False
    parts = folder.relative_to(out).parts
    links = any(out.joinpath(*parts[:depth]).is_symlink() for depth in range(1, len(parts) + 1))
    return bool(parts) and ".." not in parts and not links
