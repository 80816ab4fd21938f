"""Files and output of a run on request, so that others can see or repeat it: --save_env, --shell, --debug_script,
--repro, --dump_version_info, --print_versions and --print_readme. None of them holds a secret.
"""

import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm.common.clock import present
from cm4vllm.common.files import write_json, write_text
from cm4vllm.common.programs.own_program import commit_of_this_repository
from cm4vllm.engine.run.flags import flag
from cm4vllm.engine.run.request import Request
from cm4vllm.engine.run.session import Session
from cm4vllm.engine.run.shell_environment import shell_text

_ENV_FILE = "tmp-env.sh"
_VERSION_FILES = ("cm-run-script-versions.json", "version_info.json")


def leave(session: Session, i: Mapping[str, Any], result: Mapping[str, Any], place: str) -> None:
    """Write into the folder `place` what the flags of the top-level run ask for.

    `result` is what that run returned, failed or not.
    """
    folder = Path(place)
    if flag(i, "dump_version_info"):
        for name in _VERSION_FILES:
            write_json(folder / name, session.versions)
    if flag(i, "print_versions"):
        session.tell("versions:")
        for version in (item for entry in session.versions for item in entry.values() if item["version"]):
            session.tell(f"  {version['script_tags']}: {version['version']}")
    if flag(i, "repro"):
        _repro(session, i, result, folder)
    if flag(i, "print_readme"):
        write_text(folder / "README-cm.md", _readme(session, i, result))
    if result["return"] == 0 and flag(i, "save_env", "shell"):
        prefix = [str(line) for line in result["state"].get("script_prefix") or ()]
        write_text(folder / _ENV_FILE, shell_text(result["new_env"], session.vault, prefix))
        session.tell(f"environment: {folder / _ENV_FILE}")
        if flag(i, "shell"):
            _shell(session, folder)


def _repro(session: Session, i: Mapping[str, Any], result: Mapping[str, Any], folder: Path) -> None:
    """Write the files of `--repro`: input, result, versions and a README with the commands."""
    clean = session.vault.cleaned
    place = Path(str(i.get("repro_dir") or folder / "cm-repro"))
    stem = str(i.get("repro_prefix") or "cm-run-script")
    given = {key: value for key, value in i.items() if key not in ("parsed_automation", "parsed_artifact")}
    info = {
        "cm4vllm": commit_of_this_repository(),
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "command": _command(i),
        "time": f"{present():%Y-%m-%dT%H:%M:%SZ}",
    }
    state = {"version_info": session.versions}
    for part, value in {"input": given, "info": info, "output": result, "run-state": state}.items():
        write_json(place / f"{stem}-{part}.json", clean(_for_json(value)))
    write_text(place / f"{stem}-README-cm.md", _readme(session, i, result))
    write_json(
        folder / "cm-output.json",
        clean(
            {
                "return": result["return"],
                "error": result.get("error", ""),
                "new_env": _for_json(result.get("new_env", {})),
                "new_state": _for_json(result.get("new_state", {})),
            }
        ),
    )
    session.tell(f"to repeat the run: {place}")


def _for_json(value: Any) -> Any:
    """Return a value with what JSON does not know as text."""
    if isinstance(value, Mapping):
        return {str(key): _for_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _command(i: Mapping[str, Any]) -> str:
    """Return the command of an action as it was typed, or one that does the same."""
    typed = [str(word) for word in i.get("cmd") or []]
    if typed:
        artifact = str(i.get("artifact") or "")
        named = [artifact] if artifact and artifact not in typed else []
        return shlex.join(["cm", str(i.get("action") or "run"), "script", *named, *typed])
    return f"cm run script --tags={Request.of(i, '').title()}"


def _readme(session: Session, i: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return the README of `--repro`: the commands that repeat the run, and its result."""
    aliases = [str(repo.meta.get("alias", "")) for repo in session.automation.cmind.repos.lst]
    lines = [
        "# How to repeat this run",
        "",
        "```bash",
        *(
            f"cm pull repo {name}  # or: cm add repo --path=<folder>"
            for name in aliases
            if name not in ("", "local", "internal")
        ),
        _command(i),
        "```",
        "",
        "## Steps",
        "",
    ]
    lines += [f"- `cm run script --tags={tags}`" for tags in result.get("deps", ())]
    return session.vault.clean("\n".join(lines) + "\n")


def _shell(session: Session, folder: Path) -> None:
    """Open a shell with the environment of the run; without a terminal print that there is none."""
    if not sys.stdin.isatty():
        session.tell("note: --shell needs a terminal; the environment is written only")
        return
    session.tell("starting a shell with this environment; `exit` ends it")
    subprocess.run(["bash", "--rcfile", str(folder / _ENV_FILE), "-i"], cwd=folder, check=False)
