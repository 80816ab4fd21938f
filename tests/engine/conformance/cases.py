"""A case of the public format: scripts, requests, and the expected answer."""

from dataclasses import dataclass, field
from typing import Any

EXPORT = {"new_env_keys": ["CM_*"]}
SEEN = "def preprocess(i):\n    i['env']['CM_SEEN'] = {0}\n    return {{'return': 0}}\n"


@dataclass
class Case:
    """Scripts by alias (meta, files), the requests, and the expected answer to the last one."""

    scripts: dict[str, dict[str, Any]]
    asked: list[dict[str, Any]] | dict[str, Any]
    gives: dict[str, Any] = field(default_factory=dict)
    code: int = 0
    entries: int | None = None
    output: str = ""
    theirs: dict[str, Any] | None = None


def script(meta=None, **files):
    return {"meta": {**EXPORT, **(meta or {})}, "files": files}


def variations(**table):
    return {"variations": table}
