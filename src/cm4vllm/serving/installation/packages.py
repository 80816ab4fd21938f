"""The versions of the packages that compute in the environment of a vLLM."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from cm4vllm.common.programs.processes import run

#: The packages that compute.
PACKAGES = ("vllm", "torch", "transformers", "tokenizers", "numpy", "compressed-tensors", "vllm-bnb-plugin")


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
        return msgspec.json.decode(done.output, type=dict[str, str]) if done.ok else {}
    except msgspec.DecodeError:
        return {}
