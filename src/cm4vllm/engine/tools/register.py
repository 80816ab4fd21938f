"""Registers a checkout in the CM home and reports when another script engine comes before its own.

`python -m cm4vllm.engine.tools.register <folder of the checkout>` does both; `make setup` calls it.
"""

import itertools
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.files import locked, writable_folder, write_json
from cm4vllm.engine.format.meta_files import has_meta, read_meta, read_yaml
from cm4vllm.engine.format.script_catalogue import SCRIPT_AUTOMATION

_OWN_HOME = "unset CM_REPOS, or name a folder of this checkout alone: export CM_REPOS=FOLDER"


def cm_home() -> Path:
    """Return the folder of repos.json and of the cache: CM_REPOS, or ~/CM."""
    return Path(os.environ.get("CM_REPOS", "").strip() or Path.home() / "CM")


def register(checkout: Path, home: Path) -> bool:
    """Add a checkout to repos.json; return True if it was not listed yet.

    In a home inside the checkout, which was copied with it, the list of the other checkout is replaced. cmind's index
    is removed when the list changes: cmind makes a new one at its next start. Raises UsageError when it is no CM
    repository, and where the home belongs to another checkout of the same repository.
    """
    checkout = checkout.resolve()
    if not any((checkout / name).is_file() for name in ("cmr.yaml", "cmr.json")):
        raise UsageError(f"{checkout} is not a CM repository", cause="it holds no cmr.yaml")
    known = registered_folders(home)
    others = [path for path in known if path != checkout and _uid(path) and _uid(path) == _uid(checkout)]
    if others and not home.resolve().is_relative_to(checkout):
        raise UsageError(
            f"the CM home {home} belongs to another checkout of this repository, {others[0]}",
            cause=f"commands of this one, {checkout}, would run the programs of the other",
            remedy=_OWN_HOME,
        )
    if checkout in known and not others:
        return False
    for other in others:
        print(f"{home} was copied with {other}: it is the CM home of {checkout} now")
        known = [path for path in known if not path.is_relative_to(other)]
    write_json(home / "repos.json", list(dict.fromkeys([*map(str, known), str(checkout)])))
    (home / "index.json").unlink(missing_ok=True)
    return True


def complete(home: Path) -> None:
    """Let cmind make the rest of a new home: two commands that were the first ones at once would fail at making it.

    Raises CmError.
    """
    if (home / "repos" / "local" / "cmr.yaml").is_file() and (home / "index.json").is_file():
        return
    writable_folder(home, "CM_REPOS")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cmind", "find", "repo", "local"],
        capture_output=True,
        text=True,
        env={**os.environ, "CM_REPOS": str(home)},
        check=False,
    )
    if done.returncode:
        raise CmError(f"cmind cannot make the CM home {home}", cause=(done.stderr or done.stdout).strip()[-500:])


def engines_before(checkout: Path, home: Path) -> list[Path]:
    """Return the repositories with a script engine of their own that cmind finds before that of `checkout`."""
    checkout = checkout.resolve()
    # The order of cmind.repos.Repos.load: local, installed packages named cm*, repos.json.
    repositories = [home / "repos" / "local", *_installed_repositories(), *registered_folders(home)]
    before = itertools.takewhile(lambda repository: repository != checkout, repositories)
    return [repository for repository in before if _has_script_engine(repository)]


def warning_about_engines(checkout: Path, home: Path) -> str:
    """Return the advice to a user whose `cm run script` would not reach the engine of `checkout`; empty if it does."""
    others = engines_before(checkout, home)
    if not others:
        return ""
    return (
        f"`cm run script` reaches the script engine of {others[0]}, which comes before {checkout.resolve()}.\n"
        "Type `cm run cm4vllm:script --tags=...` instead, or put cm4vllm first in "
        f"{home / 'repos.json'} and type `cm reindex repo`."
    )


def registered_folders(home: Path) -> list[Path]:
    """Return the folders in repos.json, none where there is no such file. Raises CmError where it is not JSON."""
    path = home / "repos.json"
    try:
        listed = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise CmError(
            f"{path} is not JSON",
            cause=str(error),
            remedy="correct it, or remove it and register the repositories again: cm add repo --path=<folder>",
        ) from error
    return [Path(entry) for entry in listed]


def _installed_repositories() -> list[Path]:
    """Return the folders of CM repositories that are installed packages, in the order in which cmind takes them."""
    folders: list[Path] = []
    for module in pkgutil.iter_modules():
        if module.name.startswith("cm") and module.name != "cmind":
            package = Path(str(getattr(module.module_finder, "path", ""))) / module.name
            folders += [folder for folder in (package, package / "repo") if (folder / "cmr.yaml").is_file()][:1]
    return folders[::-1]  # cmind puts each before the ones it found earlier


def _uid(repository: Path) -> str:
    descriptor = repository / "cmr.yaml"
    return str((read_yaml(descriptor) or {}).get("uid") or "") if descriptor.is_file() else ""


def _has_script_engine(repository: Path) -> bool:
    """Return True if a repository has a script engine of its own."""
    descriptor = repository / "cmr.yaml"
    prefix = (read_yaml(descriptor) or {}).get("prefix") if descriptor.is_file() else ""
    folder = repository / str(prefix or "") / "automation" / SCRIPT_AUTOMATION[0]
    return bool(
        (folder / "module.py").is_file() and has_meta(folder) and read_meta(folder).get("uid") == SCRIPT_AUTOMATION[1]
    )


def main(argv: list[str]) -> int:
    """Register the checkout that the command line names."""
    if len(argv) != 1:
        print("usage: python -m cm4vllm.engine.tools.register <folder of the checkout>", file=sys.stderr)
        return UsageError.exit_code
    try:
        checkout, home = Path(argv[0]), cm_home()
        # Two that make a new home at once would each lose what the other writes.
        with locked(writable_folder(home, "CM_REPOS") / ".repos.json.lock"):
            if register(checkout, home):
                print(f"registered {checkout.resolve()} in {home}")
            complete(home)
        if warning := warning_about_engines(checkout, home):
            print(f"WARNING: {warning}", file=sys.stderr)
    except CmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
