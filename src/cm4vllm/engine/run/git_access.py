"""How the git of a shell file reaches a private repository, without a token in a URL: those show in lists of processes,
in `.git/config` and in messages.

Scripts ask for it by CM_GIT_AUTH=yes, with CM_GH_TOKEN, or with CM_GIT_SSH for the keys of ssh.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any

from cm4vllm.engine.format.conditions import is_no

__all__ = ["git_environment"]

_HOST = "https://github.com/"


def git_environment(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that configure git for what `env` asks; none when it asks for nothing."""
    if is_no(env.get("CM_GIT_AUTH", "")):
        return {}
    if token := str(env.get("CM_GH_TOKEN") or ""):
        login = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        return _configured(f"http.{_HOST}.extraheader", f"Authorization: Basic {login}")
    if not is_no(env.get("CM_GIT_SSH", "")):
        return _configured("url.git@github.com:.insteadOf", _HOST)
    return {}


def _configured(key: str, value: str) -> dict[str, str]:
    # What the caller's own environment configures stays: git counts from 0.
    count = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    return {"GIT_CONFIG_COUNT": str(count + 1), f"GIT_CONFIG_KEY_{count}": key, f"GIT_CONFIG_VALUE_{count}": value}
