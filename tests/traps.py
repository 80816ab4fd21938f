"""Modules in a folder that no interpreter may find there: each notes that it was imported."""

from pathlib import Path

#: Modules that every Python, LoadGen's process, the official programs or vLLM import.
NAMES = tuple(
    "cm4vllm dataclasses json multiprocessing numpy sitecustomize subprocess submission_checker vllm yaml".split()
)
_SPRUNG = ".imported"
_TEXT = f"""
import sys
with open(__file__ + "{_SPRUNG}", "a") as file:
    file.write(" ".join(sys.orig_argv) + "\\n")
raise ImportError("a module of a folder that nothing may be imported from")
"""


def set_traps(folder: Path) -> None:
    """Put modules into a folder, of which one is a package."""
    for name in NAMES:
        file = folder / name / "__init__.py" if name == "vllm" else folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(_TEXT)


def imported(folder: Path) -> dict[str, str]:
    """Return the commands that imported a module of a folder or below it, by the module's file."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob(f"*{_SPRUNG}")}
