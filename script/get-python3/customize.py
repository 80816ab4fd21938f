"""Choice of the Python that recipes use: the given one, or the one that runs cm."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    if getattr(i["automation"], "engine", "") != "cm4vllm":
        from runpy import run_path

        return dict(run_path(str(Path(__file__).parents[1] / "another_engine.py"))["refusal"](i))
    from cm4vllm.engine.run.python_packages import inspect_python

    env = i["env"]
    python = inspect_python(env.get("CM_PYTHON_BIN_WITH_PATH", ""))
    major, minor, patch = python.version.split(".")[:3]
    env |= {
        "CM_PYTHON_BIN_WITH_PATH": str(python.path),
        "CM_PYTHON_BIN": python.path.name,
        "CM_PYTHON_BIN_PATH": str(python.path.parent),
        "CM_PYTHON_VERSION": python.version,
        "CM_PYTHON_MAJOR_VERSION": major,
        "CM_PYTHON_MINOR_VERSION": minor,
        "CM_PYTHON_PATCH_VERSION": patch,
        "CM_PYTHON_CACHE_TAGS": f"version-{python.version},{'virtual' if python.is_virtual else 'non-virtual'}",
    }
    return {"return": 0, "version": python.version}
