"""customize.py: loaded once a run, called at its moments, and every way it can fail turned into one error."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cm4vllm.common.errors import CmError, InstallError, NotWritable, RecipeError
from cm4vllm.common.files import working_folder
from cm4vllm.engine.format.meta import ScriptMeta

if TYPE_CHECKING:
    from pathlib import Path

    from cm4vllm.engine.run.request import Request


@contextmanager
def working_in(folder: str) -> Iterator[None]:
    """Make `folder` the working directory for a while: hooks and helpers of the public format rely on it."""
    before = working_folder()
    try:
        os.chdir(folder)
    except OSError as error:
        raise NotWritable(
            f"{folder} cannot be used as working directory",
            cause=str(error.strerror),
            remedy="check that no other program removes it while a script runs",
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # the hook has removed it; what it returned or raised counts
            os.chdir(before)


@contextmanager
def rewording(script: ScriptMeta, request: Request) -> Iterator[None]:
    """Raise an error of the block again with the flag in place of a key, unless the user gave the key itself."""
    try:
        yield
    except CmError as error:
        for flag in sorted(script.input_mapping, key=lambda flag: flag not in request.inputs):
            if flag in request.inputs or script.input_mapping[flag] not in request.env:
                error.reworded(f"{script.input_mapping[flag]}=", f"--{flag}=")
        raise


class Hooks:
    """The functions of one script's customize.py."""

    def __init__(self, script: ScriptMeta) -> None:
        self._title = script.title()
        self._name = os.path.basename(script.folder)
        self._path = os.path.join(script.folder, "customize.py")
        self._module = self._load() if os.path.isfile(self._path) else None

    def _load(self) -> ModuleType:
        """Return the module customize.py of the script. Raises RecipeError where it cannot be loaded."""
        name = f"customize_{self._name.replace('-', '_')}"
        spec = importlib.util.spec_from_file_location(name, self._path)
        if spec is None or spec.loader is None:
            raise RecipeError(f"{self._path} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        with self._explaining("cannot be loaded"):
            spec.loader.exec_module(module)
        return module

    def get(self, name: str) -> Callable[[dict[str, Any]], Any] | None:
        """Return the hook of this name, if customize.py defines it."""
        hook = getattr(self._module, name, None)
        return hook if callable(hook) else None

    def call(self, name: str, given: dict[str, Any]) -> Mapping[str, Any]:
        """Call a hook and return its dictionary; an empty one when it is not defined.

        Raises what it raises if that is a CmError, a CmError of its exit code when it returns one, and RecipeError with
        file and line for everything else.
        """
        hook = self.get(name)
        if hook is None:
            return {}
        with self._explaining(f"{name} of {self._title} failed"):
            result = hook(given)
        if not isinstance(result, Mapping) or not isinstance(result.get("return"), int):
            raise RecipeError(
                f"{name} of {self._title} returned {result!r}",
                cause=f"in {self._path}",
                remedy="it must return {'return': 0}",
            )
        if result["return"]:
            raise CmError.again(result["return"], str(result.get("error") or f"{name} of {self._title} failed"))
        return result

    @contextmanager
    def _explaining(self, failure: str) -> Iterator[None]:
        """Turn an exception of the script's own code into a RecipeError, or InstallError for a missing package."""
        try:
            yield
        except (CmError, KeyboardInterrupt):
            raise
        except ModuleNotFoundError as error:
            hidden = shadowed_packages()
            if hidden or (requirements := self._requirements_with(error.name or "")) is None:
                raise RecipeError(f"{self._name}: {failure}", cause=self._where(error), remedy=hidden) from error
            raise InstallError(
                f"{self._name}: {failure}, because packages of {requirements} are not installed in this Python",
                cause=self._where(error),
                remedy="a plan installs nothing, a run installs them first; for the plan, type this once and the plan "
                f"again: {shlex.quote(sys.executable)} -m pip install -r {shlex.quote(str(requirements))}",
            ) from error
        except BaseException as error:
            raised_here = error.__traceback__ is None or error.__traceback__.tb_next is None
            if isinstance(error, GeneratorExit) and raised_here:  # a signal came between two statements
                raise
            raise RecipeError(
                f"{self._name}: {failure}", cause=self._where(error), remedy=shadowed_packages()
            ) from error

    def _requirements_with(self, module: str) -> Path | None:
        """Return the requirements of the recipe's repository where they list the package of a module."""
        from cm4vllm.engine.run.python_packages import requirements_of

        requirements = requirements_of(os.path.dirname(self._path))
        with suppress(OSError, ValueError):
            listed = requirements.read_text(encoding="utf-8").lower().replace("-", "_")
            if re.search(rf"^{re.escape(module.partition('.')[0].lower())}\b", listed, re.MULTILINE):
                return requirements
        return None

    def _where(self, error: BaseException) -> str:
        """Return the exception with the lines of customize.py and of the code below it that raised it."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == self._path]
        last = [frame for frame in frames[-1:] if not frame.filename.startswith("<")]
        places = [f"{frame.filename}:{frame.lineno}" for frame in (*own[-1:], *last)]
        if not own and isinstance(error, SyntaxError) and error.filename:
            places.insert(0, f"{error.filename}:{error.lineno}")
        return f"{type(error).__name__}: {error}\nat {', from '.join(dict.fromkeys(places)) or self._path}"


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
