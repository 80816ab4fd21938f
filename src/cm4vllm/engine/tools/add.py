"""`cm add script`: a new recipe from a template, which lints clean and runs."""

import re
import secrets
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from cm4vllm.common.errors import NotFoundError, UsageError, nearest
from cm4vllm.common.files import write_text
from cm4vllm.engine.format.dependency import split_tags
from cm4vllm.engine.format.script_catalogue import SCRIPT_AUTOMATION, Catalogue, add_to_index
from cm4vllm.engine.run.flags import flag

TEMPLATES = ("python", "shell")
_ALIAS = re.compile(r"[a-z0-9][a-z0-9._-]*")
_TAG = re.compile(r"[A-Za-z0-9][\w.+-]*")


def add_script(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Write a new recipe into a repository, and print its files and what to type next.

    The repository is the one named (`repo:alias`), else the one around the current folder, else CM's local one.
    """
    repo, alias = _place_and_name(automation.cmind, i)
    tags = split_tags(i.get("tags")) or tuple(alias.split("-"))
    kind = _template(i)
    _check(Catalogue(automation.cmind), alias, tags)
    folder = Path(repo.path_with_prefix) / SCRIPT_AUTOMATION[0] / alias
    if folder.exists():
        raise UsageError(f"{folder} exists already", remedy="choose another name, or remove it")
    uid = secrets.token_hex(8)
    _write(
        kind,
        folder,
        {
            "alias": alias,
            "uid": uid,
            "tags": ", ".join(tags),
            "typed": ",".join(tags),
            "category": str(i.get("category") or "Recipes"),
            "prefix": "CM_" + re.sub(r"[^A-Z0-9]", "_", alias.upper()),
        },
    )
    meta = {
        "alias": alias,
        "uid": uid,
        "automation_alias": SCRIPT_AUTOMATION[0],
        "automation_uid": SCRIPT_AUTOMATION[1],
        "tags": list(tags),
    }
    owner = repo.meta.get("alias", ""), repo.meta.get("uid", "")
    add_to_index(automation.cmind, meta, str(folder), owner)
    files = sorted(map(str, folder.iterdir()))
    if i.get("out") == "con":
        print("\n".join(files))
        typed = ",".join(tags)
        print(f"\ncm run script --tags={typed} --text=hello\ncm lint script {alias}\ncm test script {alias}")
    return {"return": 0, "path": str(folder), "uid": uid, "alias": alias, "files": files}


def _place_and_name(cmind: Any, i: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the repository of the new script and its name. Raises UsageError for a name that is none."""
    parsed = i.get("parsed_artifact") or []
    if not parsed or not (alias := str(parsed[0][0])):
        raise UsageError("the new script needs a name", remedy="for example: cm add script my-recipe --tags=my,recipe")
    if not _ALIAS.fullmatch(alias):
        raise UsageError(
            f"{alias!r} cannot be the name of a script",
            cause="it names a folder and a Python module",
            remedy="use lower-case letters, digits, '-', '_' and '.'",
        )
    repos = {str(repo.meta.get("alias", "")): repo for repo in cmind.repos.lst}
    if len(parsed) > 1:
        wanted = str(parsed[1][0] or parsed[1][1])
        repository = next((repo for name, repo in repos.items() if wanted in (name, repo.meta.get("uid"))), None)
        if repository is None:
            raise NotFoundError(f"no repository {wanted!r} is registered", remedy=nearest(wanted, repos))
        return repository, alias
    here = Path.cwd()
    around = [repo for repo in repos.values() if here.is_relative_to(Path(repo.path).resolve())]
    return (around[0] if around else repos["local"]), alias


def _template(i: Mapping[str, Any]) -> str:
    """Return the kind of template that was asked for. Raises UsageError for an unknown one."""
    # `--python` and `--shell` are typed as well; the public engine's templates have such flags.
    given = next((kind for kind in TEMPLATES if flag(i, kind)), str(i.get("template") or TEMPLATES[0]))
    if given not in TEMPLATES:
        raise UsageError(f"no template is called {given!r}", remedy=nearest(given, TEMPLATES))
    return given


def _check(catalogue: Catalogue, alias: str, tags: tuple[str, ...]) -> None:
    """Raise UsageError for a tag that cannot be one, and for an alias or tags that a script has already."""
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise UsageError(
                f"{tag!r} cannot be a tag of a script",
                cause="_name selects a variation, -name excludes a tag",
                remedy="use letters, digits, '-', '_', '+' and '.', a letter or digit first",
            )
    for script in catalogue.all():
        if script.alias == alias:
            raise UsageError(
                f"a script {alias!r} exists already", cause=f"in {script.path}", remedy="choose another name"
            )
        if set(tags) <= set(script.tags):
            raise UsageError(
                f"{script.alias} already matches {','.join(tags)}",
                cause=f"it is in {script.path}",
                remedy="choose a combination of tags that no other script has",
            )


def _write(kind: str, folder: Path, values: Mapping[str, str]) -> None:
    """Write the files of a template into a folder, with the values filled in."""
    templates = resources.files("cm4vllm.engine.tools").joinpath("templates", kind)
    # The meta comes last: until then the folder is no script.
    for source in sorted(templates.iterdir(), key=lambda source: source.name == "_cm.yaml.in"):
        text = Template(source.read_text(encoding="utf-8")).substitute(values)
        write_text(folder / source.name.removesuffix(".in"), text)
