"""One script that runs: its scope, and the calls of its hooks and shell files, which read and change that."""

from __future__ import annotations

import copy
import json
import os
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from cm4vllm.common.bounded_documents import json_of
from cm4vllm.common.errors import RecipeError, translated_os_errors
from cm4vllm.engine.format.dependency import PHASES
from cm4vllm.engine.format.meta_files import merge
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.run.environment import as_text, merge_into
from cm4vllm.engine.run.flags import flag
from cm4vllm.engine.run.request import Task
from cm4vllm.engine.run.scope import Scope, update_from
from cm4vllm.engine.run.session import Session

_ENV_OUT, _STATE_OUT, _STATE_IN, _VERSION_OUT = "tmp-run-env.out", "tmp-run-state.json", "tmp-state.json", "tmp-ver.out"
#: The files that a shell file leaves for the engine, and the engine for it.
ENGINE_FILES = (_ENV_OUT, _STATE_OUT, _STATE_IN, _VERSION_OUT)
_BITS = str(8 * struct.calcsize("P"))

#: The facts of the machine that public hooks ask for.
OS_INFO: Mapping[str, Any] = {
    "platform": "darwin" if sys.platform == "darwin" else "linux",
    "bits": _BITS,
    "python_bits": _BITS,
    "bat_ext": ".sh",
    "set_env": 'export ${key}="${value}"',
    "env_separator": ":",
    "env_var": "${env_var}",
    "bat_rem": "# ${rem}",
    "run_local_bat": ". ./${bat_file}",
    "run_bat": ". ${bat_file}",
    "run_local_bat_from_python": 'bash -c ". ./${bat_file}"',
    "set_exec_file": 'chmod 755 "${file_name}"',
    "start_script": ["#!/bin/bash", ""],
    "env": {},
}


def hook_input(run: Run) -> dict[str, Any]:
    """Return the argument of a hook: `env` and `state` are the run's own, all else is a copy.

    The dependencies in `meta` are those of this run, variations included: what a hook changes in those that are still
    to come takes effect. `run_script_input` goes back to the helpers of i['automation'].
    """
    session, task, scope = run.session, run.task, run.scope
    meta = copy.deepcopy({key: value for key, value in task.script.raw.items() if key not in PHASES})
    meta.update(
        {
            phase: [copy.deepcopy(dict(dependency.raw)) for dependency in scope.phases[phase]]
            for phase in PHASES
            if scope.phases[phase] or phase in task.script.raw
        }
    )
    path = task.script.folder
    run_state = session.run_state(task, scope.deps)
    shared = {
        "path": path,
        "env": scope.env,
        "state": scope.state,
        "const": scope.const,
        "meta": meta,
        "os_info": copy.deepcopy(dict(OS_INFO)),
        "recursion_spaces": "  " * (len(session.scripts) - 1),
        "script_tags": list(task.script.tags),
        "variation_tags": list(task.variations.names),
        "run_state": run_state,
    }
    return {
        **shared,
        "input": {**task.request.inputs, "run_state": run_state},
        "artifact": SimpleNamespace(path=path, meta=meta, original_meta=meta),
        "automation": session.automation,
        "customize": meta.get("customize", {}),
        "run_script_input": {**shared, "script_name": task.script_name or "run", "bat_ext": ".sh", "run": run},
    }


class Run(Value):
    """Input of every step: the session, the settled values, and those that change."""

    session: Session
    task: Task
    scope: Scope

    @property
    def is_fake(self) -> bool:
        """Return whether only dependencies are processed: in fake runs, and of the script that is only prepared."""
        return self.session.fake or self.session.no_deps or flag(self.task.request.inputs, "prepare")

    def hold_constants(self) -> None:
        """Set constants again, as public scripts rely on; one with strict_input may overrule its flags."""
        if not self.task.script.strict_input:
            self.scope.env.update(self.scope.const)

    def hook(self, name: str) -> Mapping[str, Any]:
        """Call a hook of customize.py, and take in what it returned and left in the environment."""
        hooks, scope = self.session.hooks_of(self.task.script), self.scope
        if hooks.get(name) is None:
            return {}
        from cm4vllm.engine.run.hooks import rewording, working_in

        # The folder of a cached script that failed is gone when its cleanup is called.
        with working_in(scope.folder if os.path.isdir(scope.folder) else self.task.request.folder):
            given = hook_input(self)
            with rewording(self.task.script, self.task.request):
                result = hooks.call(name, given)
        for key, value in scope.env.items():
            if not isinstance(key, str):
                raise RecipeError(
                    f"{name} of {self.task.script.title()} set an environment key that is not text",
                    cause=f"{key!r}",
                    remedy=f"correct {self.task.script.folder}/customize.py",
                )
            if not isinstance(value, (str, list, dict)):
                scope.env[key] = as_text(value)
        scope.version = str(result.get("version") or scope.env.get("CM_DETECTED_VERSION") or scope.version)
        scope.extra_tags = tuple(dict.fromkeys((*scope.extra_tags, *(result.get("add_extra_cache_tags") or ()))))
        update_from(given["meta"], scope.phases)
        self.session.vault.learn(scope.env)
        return result

    def detect_version(self) -> Mapping[str, Any]:
        """Call the hook detect_version, whose answer is a helper's and not yet this run's."""
        return self.session.hooks_of(self.task.script).call("detect_version", hook_input(self))

    def native(self, name: str, env: dict[str, Any], folder: str) -> None:
        """Run a shell file of the script, and merge what it writes into `env` and the state.

        An empty name means run.sh, which may be missing. Raises NativeCommandError.
        """
        from cm4vllm.engine.run.shell_script import find_native, run_native

        session, script, scope = self.session, self.task.script, self.scope
        path = find_native(script.folder, name, env)
        if path is None:
            return
        from cm4vllm.engine.run.shell_environment import debug_script, read_assignments

        self._hand_over(folder)
        prefix = [str(line) for line in scope.state.get("script_prefix") or ()]
        if session.debugged is not None and session.debugged <= set(self.task.title().split(",")):
            session.tell(f"to run it without CM: bash {debug_script(session.vault, path, env, folder, prefix)}")
        run_native(
            path,
            self._native_environment(env),
            folder,
            title=script.title(),
            log=session.log_of(script),
            guardian=session.guardian,
            output=session.output,
            clean=session.vault.clean,
            prefix=prefix,
        )
        try:
            merge_into(env, read_assignments(os.path.join(folder, _ENV_OUT)))
        except OSError as error:
            raise RecipeError(f"run.sh of {script.title()} wrote no readable {_ENV_OUT}", cause=str(error)) from error
        session.vault.learn(env)
        state_out = os.path.join(folder, _STATE_OUT)
        if os.path.exists(state_out):
            scope.state = merge(scope.state, _native_state(state_out, script.title()))

    def _native_environment(self, env: dict[str, Any]) -> dict[str, str]:
        """Return the environment of a shell file: keys as texts, and the access that git needs."""
        from cm4vllm.engine.run.shell_environment import git_environment, process_environment, shell_keys

        access = git_environment(env)
        for value in access.values():
            self.session.vault.learn({"TOKEN": value.partition("Basic ")[2]})  # derived from a secret, hence one itself
        return {**process_environment(env, shell_keys(self.task.script, self.task.layers, env)), **access}

    def _hand_over(self, folder: str) -> None:
        """Write the state for a shell file, and remove what an earlier one left for the engine."""
        with translated_os_errors("run a script in", folder):
            for leftover in (_ENV_OUT, _STATE_OUT):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, leftover))
            if self.scope.state:
                with open(os.path.join(folder, _STATE_IN), "w", encoding="utf-8") as file:
                    file.write(json.dumps(self.session.vault.cleaned(self.scope.state), default=str))


def _native_state(path: str, title: str) -> dict[str, Any]:
    """Return the state that run.sh wrote as JSON. Raises RecipeError for anything else."""
    try:
        with open(path, "rb") as file:
            state = json_of(file.read())
    except (OSError, ValueError) as error:
        raise RecipeError(f"run.sh of {title} wrote a {_STATE_OUT} that is not JSON", cause=str(error)) from error
    if not isinstance(state, dict):
        raise RecipeError(f"run.sh of {title} wrote a {_STATE_OUT} that is not a mapping")
    return state
