"""The versions of the packages in a server's environment."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cm4vllm.common.programs.processes import run

#: The packages that compute.
PACKAGES = ("vllm", "torch", "transformers", "tokenizers", "numpy", "compressed-tensors")


def packages_of(python: Path, env: Mapping[str, str] | None = None, names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of what computes in the environment of a Python, with `env` beside the present variables.

    Raises FileNotFoundError where there is no such Python.
    """
    code = (
        "import importlib.metadata as m, json, sys\nfound = {}\nfor name in sys.argv[1:]:\n"
        "    try:\n        found[name] = m.version(name)\n    except m.PackageNotFoundError:\n        pass\n"
        "print(json.dumps(found))"
    )
    done = run([python, "-P", "-c", code, *names], env=env)
    try:
        versions = json.loads(done.output) if done.ok else {}
    except ValueError:
        return {}
    return {str(name): str(version) for name, version in versions.items()}
