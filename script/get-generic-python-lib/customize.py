"""Python packages in the Python that runs cm.

Nothing of cm4vllm is imported before it is clear whose engine this is: as the first dependency of our recipes, this is
which also reports another engine that runs them.
"""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    if getattr(i["automation"], "engine", "") != "cm4vllm":
        from runpy import run_path

        return dict(run_path(str(Path(__file__).parents[1] / "another_engine.py"))["refusal"](i))
    from cm4vllm.common.programs.environments import index_options
    from cm4vllm.engine.run import python_packages as pythons

    env = i["env"]
    options = index_options(
        env.get("CM_GENERIC_PYTHON_PIP_INDEX_URL", ""), env.get("CM_GENERIC_PYTHON_PIP_EXTRA_INDEX_URL", "")
    )
    if env.get("CM_TMP_PYTHON_PACKAGE_FORCE_INSTALL") == "yes":
        options.append(pythons.FORCE)
    if env.get("CM_GENERIC_PYTHON_REQUIREMENTS") == "yes":
        pythons.require_file(pythons.requirements_of(i["artifact"].path), options)
        return {"return": 0}
    name = env.get("CM_GENERIC_PYTHON_PACKAGE_NAME", "")
    version = pythons.require_package(name, env.get("CM_TMP_PIP_VERSION_STRING", ""), options)
    env[f"CM_PYTHONLIB_{pythons.env_name(name)}_VERSION"] = version
    env[f"CM_PYTHONLIB_{pythons.env_name(name)}_CACHE_TAGS"] = (
        f"version-{version}"  # as the recipe of cm4mlops gives it
    )
    return {"return": 0, "version": version}
