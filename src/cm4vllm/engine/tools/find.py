"""Selection of an action's scripts; `cm find script`; `cm test script`, which runs the test inputs of metas.

cmind's own search compares each artifact of its index with all before it, reads the metas that it finds with YAML's
slow parser, and reads every meta of every repository when nothing has the tags. This search finds the same scripts
without that work.
"""

import fnmatch
from collections.abc import Mapping
from typing import Any

from cm4vllm.common.errors import NotFoundError
from cm4vllm.common.progress import page
from cm4vllm.engine.cache.cmind_index import slim
from cm4vllm.engine.format.dependency import split_tags
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.format.variations import are_defined
from cm4vllm.engine.run.request import Request, candidates

Result = dict[str, Any]


def find_scripts(automation: Any, i: Result) -> Result:
    """Return, as cmind's artifacts, the scripts that have all the tags and none of the tags with a leading dash.

    Without tags, or with a name or one of the flags of cmind's reindexing, cmind's own search answers.
    """
    words = split_tags(i.get("tags"))
    wanted = {word for word in words if not word.startswith("-")}
    if not wanted or i.get("parsed_artifact") or i.get("skip_index_search") or i.get("force_index_add"):
        from cmind.automation import Automation

        answer: Result = Automation.search(automation, i)
        return answer
    excluded = {word[1:] for word in words if word.startswith("-")}
    scripts: list[Any] = []
    catalogue = Catalogue(automation.cmind)
    folders = catalogue.indexed_folders(wanted) or [
        (summary.path, summary.repo) for summary in catalogue.summaries if wanted <= set(summary.tags)
    ]
    for folder, repo in folders:
        meta = catalogue.metas.read(folder)
        artifact = _artifact(automation.cmind, folder, repo)
        artifact.original_meta, artifact.meta = meta, dict(meta)
        if meta.get("_base"):
            loaded: Result = artifact.load(ignore_inheritance=bool(i.get("ignore_inheritance")))
            if loaded["return"]:
                return loaded
        if excluded.isdisjoint(tags := artifact.meta.get("tags") or ()) and wanted <= set(tags):
            scripts.append(artifact)
    catalogue.metas.keep()
    slim(automation.cmind)
    if i.get("out") == "con":
        for artifact in scripts:
            page(str(artifact.path))
    return {"return": 0, "list": scripts}


def _artifact(cmind: Any, folder: str, repo: str) -> Any:
    """Return cmind's object for the script in a folder, with its repository."""
    from cmind.artifact import Artifact

    artifact = Artifact(cmind=cmind, path=folder)
    if repo in cmind.repos.extra_info:
        artifact.repo_path = cmind.repos.extra_info[repo].path
        artifact.repo_meta = cmind.repos.extra_info[repo].meta
    return artifact


def asked_scripts(catalogue: Catalogue, i: Mapping[str, Any]) -> list[ScriptMeta]:
    """Return the scripts that an action's input names: `--tags=a,b`, `alias`, `repo:alias`, `ali*`, or tags as words.

    Without any, all scripts. Raises NotFoundError when nothing matches.
    """
    artifact = str(i.get("artifact") or "").strip()
    if not artifact and not i.get("tags"):
        return catalogue.all()
    if i.get("tags") or " " in artifact:
        return _fitting_scripts(catalogue, Request.of(i, ""))
    repo, _, name = artifact.rpartition(":")
    if "*" in name:
        scripts = [
            script
            for script in catalogue.all()
            if fnmatch.fnmatchcase(script.alias, name) and (not repo or script.repo == repo)
        ]
        if not scripts:
            raise NotFoundError(f"no scripts were found with the name {artifact!r}")
        return scripts
    try:
        return _fitting_scripts(catalogue, Request.of(i, ""))
    except NotFoundError:
        if repo:
            raise
        return _fitting_scripts(catalogue, Request.of({"tags": name}, ""))


def _fitting_scripts(catalogue: Catalogue, request: Request) -> list[ScriptMeta]:
    scripts = candidates(catalogue, request)
    return [script for script in scripts if are_defined(script, request.variations)] or scripts


def test_scripts(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Run the test inputs of the scripts with these tags, or of all scripts. The first failure ends it."""
    scripts = asked_scripts(Catalogue(automation.cmind), i)
    done: list[str] = []
    for script in scripts:
        print(script.folder)
        for given in (script.raw.get("tests") or {}).get("run_inputs") or []:
            result = automation.run({"quiet": True, **given, "artifact": script.uid})
            if result["return"]:
                return dict(result)
            done.append(script.alias)
    return {"return": 0, "scripts": [script.alias for script in scripts], "runs": done}
