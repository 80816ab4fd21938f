"""Modules of PYTHONPATH that are imported in the place of installed packages."""

import os
import sysconfig


def shadowed_packages() -> str:
    """Return which installed packages a folder of PYTHONPATH hides, with what to do; empty where it hides none."""
    installed = _module_names(sysconfig.get_path("purelib"))
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if hidden := sorted(_module_names(folder) & installed):
            return f"unset PYTHONPATH: its folder {folder} hides the installed {', '.join(hidden)}"
    return ""


def _module_names(folder: str) -> set[str]:
    """Return the names of the modules and packages in a folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return set()
    packages = {name for name in names if name.isidentifier() and os.path.isdir(os.path.join(folder, name))}
    return (packages | {name[:-3] for name in names if name.endswith(".py")}) - {"__pycache__"}
