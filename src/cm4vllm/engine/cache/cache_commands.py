"""`cm show|find|rm cache`: lists and removes the entries of the cache. cmind finds the entries."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import CmError, NotFoundError, UsageError
from cm4vllm.common.progress import page
from cm4vllm.common.units import size_text
from cm4vllm.engine.cache.entries import STATE_FILE, Entry, remove_entry
from cm4vllm.engine.format.meta_files import has_meta, json_mapping
from cm4vllm.engine.format.script_catalogue import hide_unfinished_entries
from cm4vllm.engine.run.flags import flag

Result = dict[str, Any]


def show(automation: Any, i: Result) -> Result:
    """Print tags, path, version, size and age of the entries found and, with --env, what they export."""
    artifacts = _artifacts(automation, i)
    entries = _entries(artifacts)
    if i.get("out") == "json":
        return {"return": 0, "entries": [_as_json(entry) for entry in entries]}
    sizes = [size_of(entry.folder) for entry in entries]
    for entry, size in zip(entries, sizes, strict=True):
        page(f"* Tags: {','.join(entry.tags)}")
        page(f"  Path: {entry.folder}")
        page(f"  Version: {entry.version or '-'}")
        page(f"  Made by: {entry.script or '-'}, {age_text(entry.made_at)} ago; {size_text(size)}")
        saved = json_mapping(os.path.join(entry.folder, STATE_FILE)) if flag(i, "env") else None
        for key, value in sorted((saved or {}).get("new_env", {}).items()):
            page(f"    {key}={value}")
    nothing = "nothing is cached" + (" with these tags" if i.get("tags") else "")
    page(count_in_words(entries, sum(sizes)) if entries else nothing)
    return {"return": 0, "list": artifacts}


def find(automation: Any, i: Result) -> Result:
    """Print the paths of the entries found, on a terminal with size, age and what made them."""
    artifacts = _artifacts(automation, i)
    for entry in _entries(artifacts) if i.get("out") == "con" else ():
        if sys.stdout.isatty():
            print(
                f"{entry.folder}  {size_text(size_of(entry.folder)):>8}  {age_text(entry.made_at):>8}  "
                f"{entry.script} {entry.version}".rstrip()
            )
        else:
            page(entry.folder)
    return {"return": 0, "list": artifacts}


def remove(automation: Any, i: Result) -> Result:
    """Remove the entries found, after one question unless -f is given.

    The result is 16 where tags or a name match nothing, and 20 where there is no terminal for the question.
    """
    force, console = flag(i, "f", "force"), i.get("out") == "con"
    artifacts = _artifacts(automation, i)
    entries = _entries(artifacts)
    if not entries and (i.get("tags") or i.get("artifact")):
        raise NotFoundError(
            "artifact(s) not found",
            cause=f"no cache entry matches {i.get('tags') or i['artifact']}",
            remedy="list the entries with: cm show cache",
        )
    if not entries:
        print("nothing is cached")
    elif not force and not (console and _is_confirmed(entries)):
        return {"return": 0, "deleted_list": []}
    for entry, artifact in zip(entries, artifacts, strict=True):
        if console:
            print(
                f"Deleting CM artifact in {entry.folder} ({entry.script or 'no script'}, "
                f"{size_text(size_of(entry.folder))}) ..."
            )
        remove_entry(entry.folder)
        if automation.cmind.use_index:
            automation.cmind.index.add(
                artifact.meta,
                entry.folder,
                (artifact.repo_meta["alias"], artifact.repo_meta["uid"]),
                update=True,
                delete=True,
            )
    return {"return": 0, "deleted_list": artifacts}


def _is_confirmed(entries: Sequence[Entry]) -> bool:
    """Return True if the user agrees to remove these entries. Raises UsageError without a terminal."""
    for entry in entries:
        print(f"{entry.folder}  {size_text(size_of(entry.folder)):>8}  {entry.script} {entry.version}".rstrip())
    if not sys.stdin.isatty():
        raise UsageError(
            "nothing was removed", cause="there is no terminal to ask for confirmation", remedy="add -f to remove these"
        )
    try:
        answer = input(f"Remove {count_in_words(entries, sum(size_of(entry.folder) for entry in entries))}? (y/N) ")
    except EOFError:  # Ctrl-D
        print()
        return False
    return answer.strip().lower() in ("y", "yes")


def _artifacts(automation: Any, i: Result) -> list[Any]:
    """Return the artifacts that cmind's own search finds, without its output. Raises CmError where it fails."""
    from cmind.automation import Automation

    hide_unfinished_entries(automation.cmind)
    answer = Automation.search(automation, {**i, "out": None})
    if answer["return"]:
        raise CmError.again(answer["return"], answer["error"])
    return list(answer["list"])


def _entries(artifacts: Sequence[Any]) -> list[Entry]:
    return [Entry.of(artifact.path, artifact.meta) for artifact in artifacts]


def count_in_words(entries: Sequence[Entry], size: int) -> str:
    """Return the number of entries and their size, which is in bytes, in words."""
    return f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}, {size_text(size)}"


def _as_json(entry: Entry) -> dict[str, Any]:
    """Return an entry as `--out=json` prints it; `bytes` is its size on disk."""
    return {
        "path": entry.folder,
        "tags": list(entry.tags),
        "version": entry.version,
        "script": entry.script,
        "script_uid": entry.script_uid,
        "made_at": entry.made_at,
        "bytes": size_of(entry.folder),
    }


def leftovers(root: Path) -> list[Path]:
    """Return the folders that are no entries: what killed runs left, and what runs that go on now are making."""
    return sorted(folder for folder in root.glob("*/") if folder.name != ".locks" and not has_meta(folder))


def size_of(folder: str | Path) -> int:
    """Return the bytes of all files below a folder, links not followed."""
    total = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue  # removed while we look, or not ours to read
    return total


def age_text(made_at: float) -> str:
    """Return how long ago something was made: 5 s, 12 min, 3 h, 4 days."""
    seconds = max(time.time() - made_at, 0)
    for limit, length, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds // 86400:.0f} days"
