"""`cm find script --tags=...`: what cmind's own search finds, without its cost.

cmind compares each of its index's artifacts with all before it, reads the metas that it finds with YAML's slow parser,
and reads every meta of every repository when nothing has the tags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.progress import page
from cm4vllm.engine.cache.index import slim
from cm4vllm.engine.format.catalogue import Catalogue

__all__ = ["find_scripts"]

Result = dict[str, Any]


def find_scripts(automation: Any, search: Callable[[Result], Result], i: Result) -> Result:
    """Return the scripts with all the tags, and without those that a dash precedes, as cmind's artifacts.

    Without tags, or with a name or one of the flags of cmind's reindexing, `search` is asked: cmind's own.
    """
    given = i.get("tags") or ""
    words = [str(word).strip() for word in (given.split(",") if isinstance(given, str) else given)]
    wanted = {word for word in words if word and not word.startswith("-")}
    if not wanted or i.get("parsed_artifact") or i.get("skip_index_search") or i.get("force_index_add"):
        return search(i)
    excluded = {word[1:] for word in words if word.startswith("-")}
    found: list[Any] = []
    catalogue = Catalogue(automation.cmind)
    for folder, repo in _folders(catalogue, wanted):
        try:
            meta = catalogue.metas.read(folder)
        except CmError as error:
            return {"return": error.exit_code, "error": str(error)}
        artifact = _artifact(automation.cmind, folder, repo)
        artifact.original_meta, artifact.meta = meta, dict(meta)
        if meta.get("_base"):
            loaded: Result = artifact.load(ignore_inheritance=bool(i.get("ignore_inheritance")))
            if loaded["return"]:
                return loaded
        if excluded.isdisjoint(tags := artifact.meta.get("tags") or ()) and wanted <= set(tags):
            found.append(artifact)
    catalogue.metas.keep()
    slim(automation.cmind)
    if i.get("out") == "con":
        for artifact in found:
            page(str(artifact.path))
    return {"return": 0, "list": found}


def _folders(catalogue: Catalogue, wanted: set[str]) -> list[tuple[str, str]]:
    indexed = catalogue.indexed(wanted)
    return indexed or [(one.path, one.repo) for one in catalogue.summaries if wanted <= set(one.tags)]


def _artifact(cmind: Any, folder: str, repo: str) -> Any:
    from cmind.artifact import Artifact

    artifact = Artifact(cmind=cmind, path=folder)
    if repo in cmind.repos.extra_info:
        artifact.repo_path = cmind.repos.extra_info[repo].path
        artifact.repo_meta = cmind.repos.extra_info[repo].meta
    return artifact
