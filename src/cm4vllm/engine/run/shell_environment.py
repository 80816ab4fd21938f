r"""Values that were written to stand between double quotes of a shell: `$KEY` in them is replaced, `\$` is a dollar.

All other values reach run.sh exactly as they are. A value is such a text only where the meta asks for it:
- it stands in the meta itself with a `$`, as in `CM_KEY_FILE: $HOME/.ssh/id_rsa`, and nothing has changed it since;
- or its key is listed under `shell_env_keys`.
Commands in backticks or `$(...)` are never executed here.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import write_text
from cm4vllm.common.secrets.redaction import Vault
from cm4vllm.engine.format.dependency import is_no
from cm4vllm.engine.format.meta import Layer, ScriptMeta
from cm4vllm.engine.run.environment import as_text, matching, substitute

_DEBUG_FILE = "tmp-run-without-cm.sh"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def process_environment(env: Mapping[str, Any], shell_keys: Collection[str] = ()) -> dict[str, str]:
    """Return the environment of a command: that of this process, with `env` on top, each value exactly as it is.

    Lists are joined with `:`; `+KEY` goes before what KEY holds, joined with `:` (`+ KEY`: with the character that
    follows the plus). The values of `shell_keys` are texts for double quotes and become what a shell makes of them;
    one may refer to those before it in the order of the alphabet. Raises UsageError for a value with a zero byte, which
    no process can be given.
    """
    full = dict(os.environ)
    for key, value in env.items():
        if _NAME.fullmatch(key):
            text = ":".join(map(str, value)) if isinstance(value, list) else str(value)
            if "\0" in text:
                raise UsageError(
                    f"the value of {key} contains a zero byte", cause="such a value cannot be passed to a program"
                )
            # A shell text waits for what it refers to; until then a reference to itself means the value outside.
            if key not in shell_keys:
                full[key] = text
    for key in sorted(shell_keys):
        if not key.startswith("+") and key in env:
            full[key] = expand(str(env[key]), full)
    for key in sorted(env):
        if key.startswith("+"):
            _prepend(full, key, env[key], is_shell_text=key in shell_keys)
    return full


def _prepend(full: dict[str, str], key: str, value: Any, *, is_shell_text: bool) -> None:
    """Put the items of a list before what the variable holds already, with its separator."""
    name, separator = _list_key(key)
    items = [str(item) for item in (value if isinstance(value, list) else [value])]
    if is_shell_text:
        items = [expand(item, full) for item in items]
    full[name] = separator.join([*items, *([full[name]] if full.get(name) else [])])


def _list_key(key: str) -> tuple[str, str]:
    """Return the name in `+NAME`, or in `+;NAME`, and what separates its items: a colon, or that character."""
    name = key[1:]
    return (name, ":") if not name or _NAME.match(name) else (name[1:], name[0])


def read_assignments(path: str) -> dict[str, str]:
    """Return the KEY=VALUE lines of a file; only the first `=` of a line separates. A missing file holds none."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode(errors="surrogateescape")
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in text.split("\n"))
    return {key.strip(): value.strip(" \t\r") for key, sign, value in pairs if sign and key.strip()}


def shell_text(env: Mapping[str, Any], vault: Vault, prefix: Iterable[str] = ()) -> str:
    """Return a shell file that sets the keys of `env`, each value quoted; secret ones are only named."""
    lines = ["#!/bin/bash", *prefix]
    for key in sorted(env):
        value = env[key]
        name, separator = _list_key(key) if key.startswith("+") else (key, ":")
        if not name.isidentifier():
            continue
        if vault.is_secret(name) or vault.holds(value):
            lines.append(f"# {name} is or contains a secret: set it yourself")
            continue
        text = shlex.quote(separator.join(map(str, value)) if isinstance(value, list) else str(value))
        rest = f'"${{{name}:+{separator}${name}}}"' if key.startswith("+") else ""
        lines.append(f"export {name}={text}{rest}")
    return "\n".join(lines) + "\n"


def debug_script(vault: Vault, script: str, env: Mapping[str, Any], folder: str, prefix: Iterable[str]) -> str:
    """Write a shell file that runs a script's shell file without CM; return its path."""
    from pathlib import Path

    path = Path(folder, _DEBUG_FILE)
    write_text(path, shell_text(env, vault, prefix) + f"\ncd {shlex.quote(folder)}\n. {shlex.quote(script)}\n")
    return str(path)


# Public scripts that compose values for double quotes in customize.py: what their metas would list under
# `shell_env_keys` if the public format had the word. By UID, which a renamed script keeps.
_PUBLIC: Mapping[str, tuple[str, ...]] = {
    "19f369ef47084895": ("CM_RUN_CMD", "CM_RUN_CMD0", "CM_PRE_RUN_CMD", "CM_POST_RUN_CMD"),  # benchmark-program
    "bc3b17fb430f4732": ("CM_RUN_CMD",),  # app-mlperf-inference-nvidia
    "2c3c4ba2413442e7": ("CM_DOCKER_BUILD_CMD",),  # build-docker-image
    "bf6a6d0cc97b48ae": ("CM_MLPERF_POWER_RUN_CMD",),  # run-mlperf-power-client
    "d4105c2cdb044276": ("+PATH",),  # get-zephyr
}

_PIECE = re.compile(r"""\\([$"`\\])|\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))""")


def shell_keys(script: ScriptMeta, layers: Iterable[Layer], env: Mapping[str, Any]) -> set[str]:
    """Return the keys of `env` whose values are texts for double quotes when `script`'s run.sh starts."""
    asked = set(matching(env, [*script.shell_env_keys, *_PUBLIC.get(script.uid, ())]))
    for layer in layers:
        for part in (layer.default_env, layer.env, layer.const):
            for key, value in part.items():
                text = as_text(value)
                if "$" in str(text) and key in env and env[key] == substitute(text, env):
                    asked.add(key)
    return asked


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$KEY` and `${KEY}` from `env` and undo backslashes, as double quotes would; an unset key is empty."""
    return _PIECE.sub(lambda match: match[1] or env.get(match[2] or match[3], ""), text)


_HOST = "https://github.com/"


def git_environment(env: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that configure git for what `env` asks; none when it asks for nothing."""
    if is_no(env.get("CM_GIT_AUTH", "")):
        return {}
    if token := str(env.get("CM_GH_TOKEN") or ""):
        login = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        return _git_setting(f"http.{_HOST}.extraheader", f"Authorization: Basic {login}")
    if not is_no(env.get("CM_GIT_SSH", "")):
        return _git_setting("url.git@github.com:.insteadOf", _HOST)
    return {}


def _git_setting(key: str, value: str) -> dict[str, str]:
    # The configuration in the caller's own environment stays: git counts from 0.
    count = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    return {"GIT_CONFIG_COUNT": str(count + 1), f"GIT_CONFIG_KEY_{count}": key, f"GIT_CONFIG_VALUE_{count}": value}
