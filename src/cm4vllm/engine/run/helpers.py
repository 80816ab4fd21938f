"""Methods of i['automation'] for hooks of the public format: find_artifact, parse_version, run_native_script, ...

Each takes one dictionary and gives hooks one with `return`: 0, or the kind of failure with its text under `error`; 16
says that nothing was found. Where several files fit, the first is taken and the others are printed, without a question.
"""

from __future__ import annotations

import copy
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cm4vllm.common.errors import CmError, NativeCommandError, NotFoundError, RecipeError
from cm4vllm.engine.format.dependency import Dependency
from cm4vllm.engine.format.versions import Wanted

if TYPE_CHECKING:
    from cm4vllm.engine.run.script_run import Run


Answer = dict[str, Any]

_VERSION_FILE = "tmp-ver.out"
# gcc, gcc-9, gcc-12, python3.11, llvm14: what follows the name of a file when several versions stand side by side.
_SUFFIXES = (
    "",
    ".[0-9]",
    ".[0-9][0-9]",
    "-[0-9]",
    "-[0-9][0-9]",
    "[0-9]",
    "[0-9][0-9]",
    "[0-9].[0-9]",
    "[0-9][0-9].[0-9]",
    "[0-9][0-9].[0-9][0-9]",
)


def find_artifact(i: Answer) -> Answer:
    """Find a file by name: found_path, found_file_path, found_file_name, default_path_list.

    i: file_name, env, os_info, and optionally default_path_env_key (PATH, ...), env_path_key (set to the file), hook
    (called with {'file'}, may skip it), extra_paths, detect_version with run_script_input. CM_TMP_PATH (--path) names
    the folders to look in, CM_INPUT (--input) the file itself.
    """
    env, name = i["env"], str(i["file_name"])
    folders, name, defaults = _where_to_look(i, name)
    files = find_file_in_paths({**i, "paths": folders, "file_name": name, "select": True, "env": copy.deepcopy(env)})[
        "found_files"
    ]
    if not files:
        raise NotFoundError(
            f"{name} not found",
            cause=f"looked in {', '.join(folders) or 'no folder'}",
            remedy="install it, or name its folder with --path=",
        )
    file = str(files[0])
    place = os.path.dirname(file)
    if place not in defaults:
        _export_place(i, place)
    if i.get("env_path_key"):
        env[i["env_path_key"]] = file
    return {
        "found_path": place,
        "found_file_path": file,
        "found_file_name": os.path.basename(file),
        "default_path_list": defaults,
    }


def _where_to_look(i: Mapping[str, Any], name: str) -> tuple[list[str], str, list[str]]:
    """Return the folders to search, the name of the file, and the folders of the variable to search in.

    Raises CmError for a given path that does not exist.
    """
    env = i["env"]
    defaults = get_default_path_list(i)
    asked = [path for path in str(env.get("CM_TMP_PATH") or "").split(os.pathsep) if path.strip()]
    if env.get("CM_TMP_PATH_IGNORE_NON_EXISTANT") != "yes":
        for path in asked:
            if not os.path.isdir(path):
                raise CmError(f"path {path} does not exist", remedy="give a folder with --path=")
    if forced := str(env.get("CM_INPUT") or "").strip():
        if not os.path.isfile(forced):
            raise CmError(f"file {forced} does not exist", remedy="give a file with --input=")
        return [os.path.dirname(forced)], os.path.basename(forced), defaults
    folders = asked or defaults
    # As written, not resolved: a link of a virtual environment's Python must not become the system's.
    return list(dict.fromkeys(os.path.dirname(os.path.join(path, name)) for path in folders)), name, defaults


def get_default_path_list(i: Mapping[str, Any]) -> list[str]:
    """Return the folders of a variable such as PATH. i: default_path_env_key."""
    key = i.get("default_path_env_key")
    return os.environ.get(key, "").split(os.pathsep) if key else []


def _export_place(i: Mapping[str, Any], place: str) -> None:
    """Add the folder that was found, and its neighbours in `extra_paths`, to the environment's lists of paths."""
    env = i["env"]
    key = f"+{i.get('default_path_env_key', '')}"
    if key != "+":
        env[key] = [place, *(path for path in env.get(key, []) if path != place)]
    for extra, extra_key in (i.get("extra_paths") or {}).items():
        path = os.path.normpath(os.path.join(place, "..", extra))
        if os.path.exists(path):
            env.setdefault(extra_key, []).append(path)


def find_file_in_paths(i: Answer) -> Answer:
    """Find files in folders: found_files. i: paths, file_name (or file_name_re), hook, select, detect_version."""
    if not i.get("file_name") and not i.get("file_name_re"):
        raise RecipeError("find_file_in_paths needs file_name or file_name_re")
    files: list[str] = []
    for file in _candidates(i):
        if any(os.path.exists(other) and os.path.samefile(other, file) for other in files):
            continue
        if i.get("hook") is not None:
            verdict = i["hook"]({"file": file})
            if verdict["return"]:
                raise CmError.again(verdict["return"], str(verdict.get("error", "")))
            if verdict.get("skip"):
                continue
        files.append(file)
    if i.get("select"):
        if i.get("detect_version"):
            files = [file for file in files if _fits(i, file)]
        if len(files) > 1:
            run = (i.get("run_script_input") or {}).get("run")
            if run is not None:
                run.session.tell(f"using {files[0]}; other matches: {', '.join(files[1:])}", detail=True)
            files = files[:1]
    return {"found_files": files}


def _candidates(i: Mapping[str, Any]) -> Iterator[str]:
    """Yield the files in the folders that have the name, or match the pattern."""
    for folder in i["paths"]:
        if not os.path.isdir(folder):
            continue
        if i.get("file_name_re"):
            names = sorted(name for name in os.listdir(folder) if re.match(str(i["file_name_re"]), name))
            yield from (os.path.join(folder, name) for name in names)
            continue
        for suffix in _SUFFIXES:
            yield from sorted(glob.glob(f"{os.path.join(glob.escape(folder), str(i['file_name']))}{suffix}"))


def _fits(i: Mapping[str, Any], file: str) -> bool:
    """Return True if the version that the script detects for a file is one that is wanted."""
    env = i["env"]
    env[i["env_path_key"]] = file
    asked = {"run_script_input": i["run_script_input"], "env": env, "detect_version": True}
    try:
        version = run_native_script(asked).get("version")
    except NativeCommandError:
        return False
    # -1 is a script's word for a program that it cannot use.
    return version not in (None, "", -1) and Wanted.from_environment(env).accepts(str(version))


def run_native_script(i: Answer) -> Answer:
    """Run a shell file of the script: env_tmp is the environment after it. i: run_script_input, env, script_name.

    With detect_version, the hook of that name is called afterwards and gives version.
    """
    run: Run = i["run_script_input"]["run"]
    env = i.get("env")
    env = run.scope.env if env in (None, "") else env
    name = str(i.get("script_name") or "")
    state = copy.deepcopy(run.scope.state)
    own = run.scope.env
    env.update({"CM_TMP_CURRENT_SCRIPT_PATH": run.task.script.folder, "CM_TMP_CURRENT_SCRIPT_WORK_PATH": os.getcwd()})
    try:
        run.native(name if name not in ("", "run") else run.task.script_name, env, os.getcwd())
        run.scope.env = env
        result = run.detect_version() if i.get("detect_version") else {}
    finally:
        run.scope.env, run.scope.state = own, state
    return {**result, "env_tmp": copy.deepcopy(env)}


def detect_version_using_script(i: Answer) -> Answer:
    """Run the script's shell file and the hook detect_version: detected_version; 16 when it is not a wanted one."""
    env = i.get("env") or {}
    try:
        version = run_native_script({**i, "env": env, "detect_version": True}).get("version")
    except CmError as error:
        raise NotFoundError("version was not detected", cause=str(error)) from error
    if version in (None, "", -1) or not Wanted.from_environment(env).accepts(str(version)):
        raise NotFoundError("version was not detected", cause=f"seen: {version or 'none'}")
    return {"detected_version": version}


def parse_version(i: Answer) -> Answer:
    """Read a version out of tmp-ver.out: version, string; set in which_env under env_key and CM_DETECTED_VERSION.

    i: match_text (a regular expression), group_number, env_key, which_env, and optionally file_name.
    """
    path = Path(i.get("file_name") or _VERSION_FILE)
    try:
        text = path.read_text(errors="replace", encoding="utf-8")
    except OSError as error:
        raise NotFoundError(
            "version was not detected", cause=f"cannot read {path.absolute()}: {error.strerror}"
        ) from error
    match = re.search(i["match_text"], text)
    if match is None:
        raise CmError(
            "version was not detected",
            cause=f"{path.absolute()} does not match {i['match_text']!r}:\n{text.strip()[:500]}",
        )
    if not (match.lastindex and match.lastindex >= i["group_number"]):
        raise RecipeError("version was not detected", cause=f"{i['match_text']!r} has no group {i['group_number']}")
    version = match.group(i["group_number"])
    i["which_env"][i["env_key"]] = version
    i["which_env"]["CM_DETECTED_VERSION"] = version
    return {"version": version, "string": text}


def update_deps(i: Answer) -> Answer:
    """Merge changes into dependencies by their names. i: deps (raw, changed in place), update_deps: name -> change."""
    for raw in i["deps"]:
        for name, change in i["update_deps"].items():
            if name in (raw.get("names") or ()):
                changed = dict(Dependency.of(raw).with_change(change).raw)
                raw.clear()
                raw.update(changed)
    return {}


def find_file_deep(i: Answer) -> Answer:
    """Find the folders below others that hold a file: found_paths. i: paths, file_name, restrict_paths."""
    name, restrict = glob.escape(i["file_name"]), i.get("restrict_paths") or []
    holding = [
        str(folder)
        for top in i["paths"]
        for folder in sorted(file.parent for file in Path(top).rglob(name) if file.is_file())
    ]
    return {"found_paths": [path for path in holding if not restrict or any(part in path for part in restrict)]}


def find_file_back(i: Answer) -> Answer:
    """Find the nearest folder at or above `path` that holds `file_name`: found_path, empty when there is none."""
    start = Path(i["path"]).absolute()
    parents: Iterable[Path] = (folder for folder in (start, *start.parents) if (folder / i["file_name"]).is_file())
    return {"found_path": str(next(iter(parents), ""))}


def clean_some_tmp_files(i: Answer) -> Answer:
    """Remove what shell files leave for the engine in the working directory. i: optionally env."""
    for name in ("tmp-run.sh", "tmp-state.json", "tmp-run-state.json", "tmp-run-env.out", "tmp-env.sh"):
        Path(name).unlink(missing_ok=True)
    return {}


def _as_helper(helper: Callable[[Answer], Answer]) -> Callable[[Answer], Answer]:
    """Return a helper for hooks: it answers by the dictionary that they expect, also where it fails."""

    def call(i: Answer) -> Answer:
        """Return the helper's result in cmind's form: an error becomes its code and text."""
        try:
            return {"return": 0, **helper(i)}
        except CmError as error:
            return {"return": error.exit_code, "error": str(error)}
        except KeyError as error:
            wrong = RecipeError(f"{helper.__name__} needs {error}", cause="a customize.py called it without it")
            return {"return": wrong.exit_code, "error": str(wrong)}

    return call


#: By the name under which a hook calls it.
HELPERS: Mapping[str, Callable[[Answer], Any]] = {
    "find_artifact": _as_helper(find_artifact),
    "find_file_in_paths": _as_helper(find_file_in_paths),
    "find_file_deep": _as_helper(find_file_deep),
    "find_file_back": _as_helper(find_file_back),
    "parse_version": _as_helper(parse_version),
    "run_native_script": _as_helper(run_native_script),
    "detect_version_using_script": _as_helper(detect_version_using_script),
    "update_deps": _as_helper(update_deps),
    "clean_some_tmp_files": _as_helper(clean_some_tmp_files),
    "get_default_path_list": get_default_path_list,
}
