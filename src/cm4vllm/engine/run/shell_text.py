r"""Values that were written to stand between double quotes of a shell: `$KEY` in them is replaced, `\$` is a dollar.

All other values reach run.sh exactly as they are. A value is such a text only where the meta asks for it:
- it stands in the meta itself with a `$`, as in `CM_KEY_FILE: $HOME/.ssh/id_rsa`, and nothing has changed it since;
- or its key is listed under `shell_env_keys`.
Commands in backticks or `$(...)` are never executed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cm4vllm.engine.format.meta import Layer, ScriptMeta
from cm4vllm.engine.run.environment import as_text, matching, substitute

__all__ = ["expand", "shell_keys"]

# Public scripts that compose values for double quotes in customize.py: what their metas would list under
# `shell_env_keys` if the public format had the word. By UID, which a renamed script keeps.
_PUBLIC: Mapping[str, tuple[str, ...]] = {
    "19f369ef47084895": ("CM_RUN_CMD", "CM_RUN_CMD0", "CM_PRE_RUN_CMD", "CM_POST_RUN_CMD"),  # benchmark-program
    "bc3b17fb430f4732": ("CM_RUN_CMD",),                    # app-mlperf-inference-nvidia
    "2c3c4ba2413442e7": ("CM_DOCKER_BUILD_CMD",),           # build-docker-image
    "bf6a6d0cc97b48ae": ("CM_MLPERF_POWER_RUN_CMD",),       # run-mlperf-power-client
    "d4105c2cdb044276": ("+PATH",),                         # get-zephyr
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
    return _PIECE.sub(lambda found: found[1] or env.get(found[2] or found[3], ""), text)
