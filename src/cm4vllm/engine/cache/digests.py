"""Fingerprints: of a recipe, so that an edited one makes a new entry, and of files, so that altered ones are found."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import cm4vllm
from cm4vllm.common.errors import RecipeError
from cm4vllm.engine.format.meta import ScriptMeta

try:
    from _blake2 import blake2b  # what hashlib gives by this name, without loading OpenSSL at every start
except ImportError:
    from hashlib import blake2b

__all__ = ["changed", "digest_of", "module_file", "observed", "recipe_digest"]

# Keys of a meta that change how a script is found, shown or wrapped, but not what it makes.
_DESCRIPTIVE = frozenset({
    "alias", "uid", "automation_alias", "automation_uid", "tags", "tags_help", "name", "category", "category_sort",
    "developers", "copyright", "input_description", "print_env_at_the_end", "print_files_if_script_error", "warnings",
    "docker", "docker_input_mapping", "gui", "tests", "sort", "variation_groups_order", "cache", "can_force_cache",
    "min_cm_version", "strict_input", "variations",
})
_NO_PART_OF_A_RECIPE = frozenset({"_cm.yaml", "_cm.json", "__pycache__", "docs", "tests", "dockerfiles"})

# Up to this size all of a file counts, above it both ends: a model's weights are not read again at every run.
_WHOLE_BYTES = 8 << 20
_END_BYTES = 1 << 20
_PACKAGE = os.path.dirname(os.path.abspath(cm4vllm.__file__))
#: An entry with more files than this is watched at its top only.
MOST_FILES = 2000

Record = list[Any]


def digest_of(data: bytes) -> str:
    """Return the BLAKE2b digest of `data`, 256 bits in hexadecimal."""
    return str(blake2b(data, digest_size=32).hexdigest())


def recipe_digest(script: ScriptMeta, variations: Collection[str], made_by: Iterable[str] = ()) -> str:
    """Return a digest of what a script does with these variations: its effective meta, the files beside it, and the
    modules of this package that make what it keeps.

    Texts for people (README, descriptions) and variations that are off do not count. Raises RecipeError when a module
    is not there.
    """
    meta = {key: value for key, value in script.raw.items() if key not in _DESCRIPTIVE}
    meta["variations"] = {name: script.variations.get(name) for name in variations}
    parts = [json.dumps(meta, sort_keys=True, default=str)]
    parts += [f"{os.path.relpath(path, script.folder)}\0{_content_digest(path)}"
              for path in sorted(_recipe_files(script.folder))]
    parts += [f"{module}\0{_code_digest(module, script)}" for module in made_by]
    return digest_of(os.fsencode("\n".join(parts)))


def module_file(module: str) -> str:
    """Return the file of a module of this package, whether it is there or not."""
    return os.path.join(_PACKAGE, *module.removeprefix("cm4vllm.").split(".")) + ".py"


def _code_digest(module: str, script: ScriptMeta) -> str:
    """Return a digest of a module's lines; empty ones and comments do not count."""
    try:
        with open(module_file(module), "rb") as file:
            lines = [line for line in file if not line.isspace() and not line.lstrip().startswith(b"#")]
    except OSError as error:
        raise RecipeError(f"made_by of {script.title()} names {module}, which cannot be read",
                          cause=str(error)) from error
    return digest_of(b"".join(lines))


def _recipe_files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _NO_PART_OF_A_RECIPE or entry.name.endswith((".md", ".pyc")) or entry.name[0] == ".":
                continue
            if entry.is_dir():
                yield from _recipe_files(entry.path)
            elif entry.is_file():
                yield entry.path


def observed(folder: str, exported: Iterable[str], made_from: str = "") -> dict[str, Record | None]:
    """Return what must stay as it is for an entry to be usable: path -> [size, mtime in ns, digest], or None for paths
    that only must exist.

    Those are the files at the top of the entry and the paths that it exports; exported folders inside the entry with
    all their files. Files of Python environments and git work trees are changed by rightful use: they must only exist,
    as must what lies outside of the entry, but for the file that it is `made_from`.
    """
    exported = set(exported)
    records: dict[str, Record | None] = {}
    for path in sorted({*exported, *(os.path.join(folder, name) for name in os.listdir(folder) if _stays(name))}):
        if os.path.isfile(path) and (path == made_from or path.startswith(f"{folder}{os.sep}")):
            records[path] = _record(path)
        elif os.path.exists(path):
            records[path] = None
    for path in sorted(exported):
        if os.path.isdir(path) and f"{path}{os.sep}".startswith(f"{folder}{os.sep}"):
            records.update(_tree(path))
    return records


def _stays(name: str) -> bool:
    return not name.startswith("tmp-") and not name.endswith((".log", ".lock", ".pyc"))


def _tree(folder: str) -> dict[str, Record | None]:
    records: dict[str, Record | None] = {}
    for root, folders, files in os.walk(folder):
        if not {".git", "pyvenv.cfg"}.isdisjoint((*folders, *files)):
            folders.clear()
            continue
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        for name in files:
            path = os.path.join(root, name)
            if _stays(name) and os.path.isfile(path):
                records[path] = _record(path)
        if len(records) > MOST_FILES:
            return {}
    return records


def changed(records: Mapping[str, Record | None]) -> str:
    """Return the first path that is gone or altered; empty when all is as it was observed."""
    for path, record in records.items():
        try:
            status = os.stat(path)
            if record is None or (status.st_size == record[0] and status.st_mtime_ns == record[1]):
                continue
            if status.st_size != record[0] or _content_digest(path) != record[2]:
                return path
        except (OSError, LookupError, TypeError):  # gone, unreadable, or a record that is none
            return path
    return ""


def _record(path: str) -> Record:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, _content_digest(path)]


def _content_digest(path: str) -> str:
    digest = blake2b(digest_size=32)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _WHOLE_BYTES:
            digest.update(file.read())
        else:
            digest.update(str(size).encode())
            digest.update(file.read(_END_BYTES))
            file.seek(-_END_BYTES, os.SEEK_END)
            digest.update(file.read())
    return str(digest.hexdigest())
