"""`cm show|find|rm cache`: what lies in the cache, and how to be rid of it. cmind finds the entries."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import CmError, NotFoundError, UsageError, translated_os_errors
from cm4vllm.common.progress import page
from cm4vllm.engine.cache.entries import STATE_FILE
from cm4vllm.engine.cache.listing import Stored, age_text, size_of
from cm4vllm.engine.plan.costs import size_text
from cm4vllm.engine.run.request import flag

__all__ = ["find", "remove", "show"]

Result = dict[str, Any]
Search = Callable[[Result], Result]


def show(search: Search, i: Result) -> Result:
    """Print tags, path, version, size and age of the entries found and, with --env, what they export."""
    found = search({**i, "out": None})
    if found["return"]:
        return found
    entries = _entries(found)
    if i.get("out") == "json":
        return {"return": 0, "entries": [_as_json(entry) for entry in entries]}
    total = 0
    for entry in entries:
        size = size_of(entry.folder)
        total += size
        page(f"* Tags: {','.join(entry.tags)}")
        page(f"  Path: {entry.folder}")
        page(f"  Version: {entry.version or '-'}")
        page(f"  Made by: {entry.script or '-'}, {age_text(entry.made_at)} ago; {size_text(size)}")
        if flag(i, "env"):
            _print_env(entry)
    page(_counted(entries, total) if entries else "nothing is cached" + (" with these tags" if i.get("tags") else ""))
    return {"return": 0, "list": found["list"]}


def _print_env(entry: Stored) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        saved = json.loads((entry.folder / STATE_FILE).read_bytes())
        for key, value in sorted(saved["new_env"].items()):
            page(f"    {key}={value}")


def find(search: Search, i: Result) -> Result:
    """Print the paths of the entries found, on a terminal with size, age and what made them."""
    console = i.get("out") == "con"
    found = search({**i, "out": None})
    if found["return"] or not console:
        return found
    for entry in _entries(found):
        if sys.stdout.isatty():
            print(f"{entry.folder}  {size_text(size_of(entry.folder)):>8}  {age_text(entry.made_at):>8}  "
                  f"{entry.script} {entry.version}".rstrip())
        else:
            page(str(entry.folder))
    return found


def remove(search: Search, cmind: Any, i: Result) -> Result:
    """Remove the entries found, after one question unless -f is given.

    The result is 16 where tags or a name match nothing, and 20 where nobody can be asked.
    """
    force, console = flag(i, "f", "force"), i.get("out") == "con"
    found = search({**i, "out": None})
    if found["return"]:
        return found
    entries = _entries(found)
    try:
        if not entries:
            return _nothing(i)
        if not force and not (console and _confirmed(entries)):
            return {"return": 0, "deleted_list": []}
        for entry, artifact in zip(entries, found["list"], strict=True):
            if console:
                print(f"Deleting CM artifact in {entry.folder} ({entry.script or 'no script'}, "
                      f"{size_text(size_of(entry.folder))}) ...")
            _remove(entry.folder)
            if cmind.use_index:
                cmind.index.add(artifact.meta, str(entry.folder),
                                (artifact.repo_meta["alias"], artifact.repo_meta["uid"]), update=True, delete=True)
    except CmError as error:
        return {"return": error.exit_code, "error": str(error)}
    return {"return": 0, "deleted_list": found["list"]}


def _nothing(i: Mapping[str, Any]) -> Result:
    if i.get("tags") or i.get("artifact"):
        raise NotFoundError("artifact(s) not found", cause=f"nothing in the cache has {i.get('tags') or i['artifact']}",
                            remedy="list what is there with: cm show cache")
    print("nothing is cached")
    return {"return": 0, "deleted_list": []}


def _confirmed(entries: Sequence[Stored]) -> bool:
    for entry in entries:
        print(f"{entry.folder}  {size_text(size_of(entry.folder)):>8}  {entry.script} {entry.version}".rstrip())
    if not sys.stdin.isatty():
        raise UsageError("nothing was removed", cause="there is no terminal to ask at", remedy="add -f to remove these")
    answer = input(f"Remove {_counted(entries, sum(size_of(entry.folder) for entry in entries))}? (y/N) ")
    return answer.strip().lower() in ("y", "yes")


def _remove(folder: Path) -> None:
    """Remove an entry; without its meta, which goes first, what a kill leaves is none."""
    with translated_os_errors("remove", folder):
        for name in ("_cm.json", "_cm.yaml"):
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process removes it too
            shutil.rmtree(folder)


def _entries(found: Mapping[str, Any]) -> list[Stored]:
    return [Stored.of(Path(artifact.path), artifact.meta) for artifact in found["list"]]


def _counted(entries: Sequence[Stored], size: int) -> str:
    return f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}, {size_text(size)}"


def _as_json(entry: Stored) -> dict[str, Any]:
    return {"path": str(entry.folder), "tags": list(entry.tags), "version": entry.version, "script": entry.script,
            "script_uid": entry.script_uid, "made_at": entry.made_at, "bytes": size_of(entry.folder)}
