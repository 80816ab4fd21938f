"""What cmind loads for `cm <action> script`: a shell over cm4vllm.engine.

cmind executes this file anew on every call, and shows the docstrings of these methods for --help.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

# A checkout that is registered but not installed: what recipes start finds the package by PYTHONPATH.
_SRC = Path(__file__).resolve().parents[2] / "src"
# A folder that is merely named cm4vllm, such as the checkout itself, is found too, but has no origin.
if getattr(importlib.util.find_spec("cm4vllm"), "origin", None) is None and _SRC.is_dir():
    sys.path.insert(0, str(_SRC))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_SRC), os.environ.get("PYTHONPATH", "")]))

from cm4vllm.engine.automation import ScriptAutomation  # noqa: E402


class CAutomation(ScriptAutomation):
    def run(self, i: dict[str, Any]) -> dict[str, Any]:
        """Run a script, its dependencies first.

        tags (str): tags and _variations, comma-separated
        env, const (dict): environment keys; adr (dict): changes of named dependencies
        version, version_min, version_max (str)
        new, renew, skip_cache, quiet, silent, verbose, j, ignore_script_error (bool)
        and the inputs of the script, which `cm run script --tags=<tags> --help` lists
        """
        return super().run(i)

    def show(self, i: dict[str, Any]) -> dict[str, Any]:
        """Show what scripts take and give.

        tags (str): tags of the scripts
        """
        return super().show(i)

    def test(self, i: dict[str, Any]) -> dict[str, Any]:
        """Run the test inputs that the metas of scripts give.

        tags (str): tags of the scripts; all scripts without
        """
        return super().test(i)
