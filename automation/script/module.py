"""The module that cmind loads for `cm <action> script`: it only calls cm4vllm.engine.

cmind executes this file again on every call, and shows the docstrings of these methods for --help.
"""

import importlib.util
import os
import sys
from typing import Any

# A checkout that is registered but not installed: what recipes start finds the package by PYTHONPATH.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# A copy of an installed package, as in a container, is itself the folder of the package.
_SRC = os.path.dirname(_ROOT) if os.path.isfile(os.path.join(_ROOT, "__init__.py")) else os.path.join(_ROOT, "src")
# A folder that is merely named cm4vllm, such as the checkout itself, is found too, but has no origin.
if getattr(importlib.util.find_spec("cm4vllm"), "origin", None) is None and os.path.isdir(_SRC):
    sys.path.insert(0, _SRC)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_SRC, os.environ.get("PYTHONPATH", "")]))

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
        return self._result_of("tools.help.script_help", i)

    def search(self, i: dict[str, Any]) -> dict[str, Any]:
        """Find scripts; for a person, print their paths.

        tags (str): tags of the scripts, -tag for those without it; or a name
        """
        return self._result_of("tools.help.find_scripts", i)

    def test(self, i: dict[str, Any]) -> dict[str, Any]:
        """Run the test inputs that the metas of scripts give.

        tags (str): tags of the scripts; or a name, repo:name, or name*; all scripts without
        """
        return self._result_of("tools.help.test_scripts", i)

    def plan(self, i: dict[str, Any]) -> dict[str, Any]:
        """Print what a run would do: nothing of any script is run, and nothing is written.

        All that `cm run script` takes, and
        graph (bool): print it as a Mermaid graph; out=json or j: as JSON
        """
        return self._result_of("plan.graph.print_plan", i)

    def lint(self, i: dict[str, Any]) -> dict[str, Any]:
        """Print what is suspicious in scripts, by file and line; 3 if anything is.

        tags (str): tags of the scripts; or a name, repo:name, or name*; all scripts without
        """
        return self._result_of("tools.lint.lint_scripts", i)

    def doctor(self, i: dict[str, Any]) -> dict[str, Any]:
        """Print what is wrong with the CM home and this machine, each with a remedy; 1 if anything is."""
        return self._result_of("tools.doctor.print_diagnosis", i)

    def add(self, i: dict[str, Any]) -> dict[str, Any]:
        """Write a new script from a template: cm add script [repo:]name --tags=a,b

        tags (str): its tags; the words of its name otherwise
        template (str): python or shell
        """
        return self._result_of("tools.add.add_script", i)

    def dockerfile(self, i: dict[str, Any]) -> dict[str, Any]:
        """Write a folder with a Dockerfile for a script and all that it needs.

        All that `cm run script` takes: it becomes the command of the image. And
        docker_folder (str): the folder; docker_base_image, docker_image (str): what it is built on, and its name
        """
        return self._result_of("tools.docker.docker_script", i, run_it=False)

    def docker(self, i: dict[str, Any]) -> dict[str, Any]:
        """Write a Dockerfile for a script, build it and run it.

        What `cm dockerfile script` takes; no_run (bool): only write it
        """
        return self._result_of("tools.docker.docker_script", i, run_it=True)
