"""The module that cmind loads for `cm <action> cache`: it only calls cm4vllm.engine."""

import importlib.util
import os
import sys
from typing import Any

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# A copy of an installed package, as in a container, is itself the folder of the package.
_SRC = os.path.dirname(_ROOT) if os.path.isfile(os.path.join(_ROOT, "__init__.py")) else os.path.join(_ROOT, "src")
# A folder that is merely named cm4vllm, such as the checkout itself, is found too, but has no origin.
if getattr(importlib.util.find_spec("cm4vllm"), "origin", None) is None and os.path.isdir(_SRC):
    sys.path.insert(0, _SRC)

from cm4vllm.engine.automation import OwnAutomation  # noqa: E402


class CAutomation(OwnAutomation):
    def show(self, i: dict[str, Any]) -> dict[str, Any]:
        """Show cache entries: tags, path, version, size and age.

        tags (str): tags of the entries; env (bool): also show what they export
        """
        return self._result_of("cache.cache_commands.show", i)

    def search(self, i: dict[str, Any]) -> dict[str, Any]:
        """Find cache entries and print their paths; on a terminal with size and age.

        tags (str): tags of the entries, -tag for those without it
        """
        return self._result_of("cache.cache_commands.find", i)

    def delete(self, i: dict[str, Any]) -> dict[str, Any]:
        """Remove cache entries, after one question.

        tags (str): tags of the entries; f, force (bool): do not ask
        """
        return self._result_of("cache.cache_commands.remove", i)
