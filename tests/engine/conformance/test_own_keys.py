"""docs/engine.md lists every key of the metas and every hook of this repository that the public engine does not know.

Needs CM4MLOPS=<checkout of cm4mlops>.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tests.engine.conftest import ROOT

#: The first cell of a row of the page.
LISTED = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)
HOOK = re.compile(r"^def ([a-z]\w+)\(i\b", re.MULTILINE)


def keys_of(meta: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of a meta and of its variations."""
    yield from meta
    for variation in (meta.get("variations") or {}).values():
        yield from variation or {}


def texts(folder: Path, pattern: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in folder.glob(pattern))


def test_each_key_and_hook_of_this_engine_alone_is_listed(cm4mlops: Path) -> None:
    public = texts(cm4mlops, "automation/script/module.py") + texts(cm4mlops, "script/*/_cm.*")
    _, _, section = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8").partition("### What only this engine")
    listed = set(re.findall(r"`(\w+)", " ".join(LISTED.findall(section))))
    metas = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in ROOT.glob("script/*/_cm.yaml")]
    used = {key for meta in metas for key in keys_of(meta)} | set(HOOK.findall(texts(ROOT, "script/*/customize.py")))
    unknown = {name for name in used | listed if not re.search(rf"['\"]{name}['\"]|^ *{name}:", public, re.MULTILINE)}
    assert listed == unknown
