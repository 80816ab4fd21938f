"""All scripts of all registered repositories: found through cmind's index, or by a look at the folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.engine.documents import has_meta
from cm4vllm.engine.meta import ScriptMeta, load_script

__all__ = ["SCRIPT_AUTOMATION", "Catalogue"]

SCRIPT_AUTOMATION = ("script", "5b4e0237da074764")


class Catalogue:
    """Scripts, each read at most once. `cmind` is the running CM, whose repositories and index are used."""

    def __init__(self, cmind: Any) -> None:
        self._cmind = cmind
        self._read: dict[Path, ScriptMeta] = {}
        self._scanned: list[ScriptMeta] | None = None

    def with_tags(self, tags: tuple[str, ...]) -> list[ScriptMeta]:
        """Return the scripts that have all these tags; the folders are looked at only when the index knows none."""
        wanted = set(tags)
        indexed = [script for script in self._indexed(wanted) if wanted <= set(script.tags)]
        return indexed or [script for script in self.all() if wanted <= set(script.tags)]

    def named(self, name: str, repo: str = "") -> list[ScriptMeta]:
        """Return the scripts of this alias or UID, of the repository with this alias or UID where given."""
        return [script for script in self.all() if name in (script.alias, script.uid)
                and (not repo or repo in self._repo_names(script))]

    def all(self) -> list[ScriptMeta]:
        """Return every readable script; of two with one UID the first in the order of the repositories."""
        if self._scanned is None:
            found: dict[str, ScriptMeta] = {}
            for path, repo in self.folders():
                try:
                    script = self.script(path, repo)
                except CmError:
                    continue  # one broken meta must not hide the others; choosing it tells what is wrong
                if script.raw.get("automation_uid") == SCRIPT_AUTOMATION[1]:
                    found.setdefault(script.uid or str(path), script)
            self._scanned = list(found.values())
        return self._scanned

    def script(self, path: Path, repo: str) -> ScriptMeta:
        """Return the script in a folder. Raises RecipeError when its meta cannot be read."""
        if path not in self._read:
            self._read[path] = load_script(path, repo)
        return self._read[path]

    def _indexed(self, wanted: set[str]) -> Iterator[ScriptMeta]:
        index = getattr(self._cmind, "index", None)
        entries = (index.meta if index is not None else {}).get(SCRIPT_AUTOMATION[1], {})
        for entry in entries.values():
            # Each script stands twice in the index; the entry under its UID is the one that tells its alias.
            if "alias" in entry and wanted <= set(entry.get("tags") or ()):
                path = Path(entry["path"])
                if has_meta(path):
                    yield self.script(path, str((entry.get("repo") or [""])[0]))

    def folders(self) -> Iterator[tuple[Path, str]]:
        """Yield the folders of all scripts, those of one UID included, each with the alias of its repository."""
        for repo in self._cmind.repos.lst:
            root = Path(repo.path_with_prefix)
            for automation in sorted(root.glob("script*")):
                if automation.is_dir():
                    for path in sorted(automation.iterdir()):
                        if has_meta(path):
                            yield path, str(repo.meta.get("alias", ""))

    def _repo_names(self, script: ScriptMeta) -> set[str]:
        return {script.repo, *(str(repo.meta.get("uid", "")) for repo in self._cmind.repos.lst
                               if repo.meta.get("alias") == script.repo)}
