"""One script's run, in the order of the public format, and what it hands back.

deps -> preprocess -> prehook_deps -> run.sh -> posthook_deps -> postprocess -> post_deps
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import CmError, RecipeError
from cm4vllm.engine import dependencies
from cm4vllm.engine.cache import Entry, Identity
from cm4vllm.engine.conditions import is_no
from cm4vllm.engine.documents import merged
from cm4vllm.engine.environment import Env, exported, merge_into, substitute_all
from cm4vllm.engine.frame import Frame
from cm4vllm.engine.hooks import working_in
from cm4vllm.engine.meta import Dependency, ScriptMeta
from cm4vllm.engine.request import Request, flag
from cm4vllm.engine.selection import select
from cm4vllm.engine.session import Session

__all__ = ["Outcome", "run"]

_ENV_OUT, _STATE_OUT, _STATE_IN = "tmp-run-env.out", "tmp-run-state.json", "tmp-state.json"


@dataclass
class Outcome:
    """What a script handed back. `new_env` and `new_state` are what its caller gets."""

    env: Env = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    new_env: Env = field(default_factory=dict)
    new_state: dict[str, Any] = field(default_factory=dict)
    deps: list[str] = field(default_factory=list)
    version: str = ""
    cached: bool = False
    skipped: bool = False

    def as_result(self) -> dict[str, Any]:
        """Return it as the dictionary that an action of cmind returns."""
        result: dict[str, Any] = {"return": 0, "env": self.env, "new_env": self.new_env, "state": self.state,
                                  "new_state": self.new_state, "deps": self.deps}
        if self.version:
            result["version"] = self.version
        if self.skipped:
            result["skipped"] = True
        return result


def run(session: Session, request: Request) -> Outcome:
    """Run the script that `request` means, or use what the cache holds of it. Raises CmError when it fails."""
    script = select(session.catalogue, request, session.near)
    with session.under_way(script):
        return _Run(session, request, script).outcome()


class _Run(Frame):
    """One script's run. Nothing of it is used by another run; its environment and state are its own copies."""

    def __init__(self, session: Session, request: Request, script: ScriptMeta) -> None:
        super().__init__(request, script, fake=session.fake)
        self.session = session
        self.folder = request.folder
        self.deps: list[str] = []
        self.extra_tags: list[str] = []
        for note in self.remarks():
            session.tell(note)

    # --- cached or not -----------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        outcome = self.from_cache() if self.is_kept and self.is_real else self.fresh()
        self.check_version(outcome.version)
        if self.is_real and not self.session.no_deps:
            self.check_promises(outcome.new_env)
        self.tell_env(outcome)
        return outcome

    def from_cache(self) -> Outcome:
        cache, identity = self.session.cache, self.identity()
        again = flag(self.request.inputs, "new", "renew")
        if not again and (found := self.hit(cache.find(identity, self.wanted))):
            return found
        with cache.lock(identity, self.session.tell):
            cache.recover(identity)
            entry = cache.find(identity, self.wanted)
            if not again and entry is not None:
                if found := self.hit(entry):
                    return found
                self.session.tell(f"{self.script.title()}: files of its cache entry are gone; making it again")
                cache.drop(entry)
                entry = None
            renews = entry is not None and flag(self.request.inputs, "renew")
            with cache.renewed_folder(entry) if entry and renews else cache.new_folder(identity) as folder:
                return self.into_cache(identity, folder)

    def into_cache(self, identity: Identity, folder: Path) -> Outcome:
        asked = self.wanted
        self.folder = folder
        outcome = self.fresh()
        self.check_version(outcome.version)
        versions = [f"version-{version}" for version in dict.fromkeys((asked.version, outcome.version)) if version]
        self.session.cache.finish(
            folder, identity, script=(self.script.alias, self.script.uid), asked=asked.pip_text(),
            tags=[*self.cache_tags(), *versions, *self.extra_tags, f"script-artifact-{self.script.uid}"],
            result={"new_env": outcome.new_env, "new_state": outcome.new_state, "deps": outcome.deps,
                    "version": outcome.version})
        return outcome

    def hit(self, entry: Entry | None) -> Outcome | None:
        """Use an entry: only dynamic dependencies run."""
        saved = entry.result() if entry else None
        if entry is None or saved is None:
            return None
        self.session.tell(f"{self.script.title()} (from the cache: {entry.folder})", detail=self.request.is_dependency)
        for phase in self.phases:
            self.run_deps(phase, only_dynamic=True)
        merge_into(self.env, saved["new_env"])
        self.state = merged(self.state, saved["new_state"])
        return Outcome(self.env, self.state, dict(saved["new_env"]), saved["new_state"],
                       [*saved.get("deps", []), *self.deps], str(saved.get("version", "")), cached=True)

    # --- the run itself ----------------------------------------------------------------------------------------------

    def fresh(self) -> Outcome:
        session, script = self.session, self.script
        session.tell(script.title(), detail=self.folder == self.request.folder and len(session.scripts) > 1)
        for warning in script.warnings:
            session.tell(f"note: {warning}")
        self.settle_version()
        self.env.update({
            "CM_TMP_CURRENT_PATH": str(self.request.folder), "CM_TMP_CURRENT_SCRIPT_PATH": str(script.path),
            "CM_TMP_CURRENT_SCRIPT_WORK_PATH": str(self.folder)})
        if self.env.get("CM_OUTDIRNAME"):
            self.folder = self.folder / str(self.env["CM_OUTDIRNAME"])
            self.folder.mkdir(parents=True, exist_ok=True)
        self.run_deps("deps")
        own_part = self.is_real
        result = self.preprocess() if own_part else {}
        if result.get("skip"):
            return self.instead(result)
        self.run_deps("prehook_deps")
        if own_part:
            self.native()
        self.run_deps("posthook_deps")
        if own_part:
            self.take(self.hook("postprocess"))
            self.run_deps("post_deps")
        return self.result()

    def preprocess(self) -> Mapping[str, Any]:
        hooks = self.session.hooks_of(self.script)
        if hooks.get("cleanup"):
            self.session.at_the_end(self.script.title(), lambda: self.take(self.hook("cleanup")))
        result = self.hook("preprocess")
        self.take(result)
        return result

    def hook(self, name: str) -> Mapping[str, Any]:
        hooks = self.session.hooks_of(self.script)
        if hooks.get(name) is None:
            return {}
        # The folder of a cached script that failed is gone when its cleanup is called.
        with working_in(self.folder if self.folder.is_dir() else self.request.folder):
            return hooks.call(name, self.hook_input())

    def hook_input(self) -> dict[str, Any]:
        raw = copy.deepcopy(dict(self.script.raw))
        artifact = _Artifact(str(self.script.path), raw)
        tags = list(self.script.tags)
        shared = {"path": str(self.script.path), "env": self.env, "state": self.state, "meta": raw,
                  "recursion_spaces": "  " * (len(self.session.scripts) - 1), "script_tags": tags,
                  "variation_tags": list(self.variations.names), "run_state": {}}
        return {**shared, "input": dict(self.request.inputs), "const": self.const, "artifact": artifact,
                "automation": self.session.automation, "customize": raw.get("customize", {}), "os_info": dict(_OS_INFO),
                "run_script_input": {**shared, "os_info": dict(_OS_INFO), "script_name": self.script_name or "run",
                                     "bat_ext": ".sh"}}

    def take(self, result: Mapping[str, Any]) -> None:
        """Take in what a hook returned and left in the environment."""
        for key, value in self.env.items():
            if not isinstance(value, (str, list, dict)):
                merge_into(self.env, {key: value})
        self.version = str(result.get("version") or self.env.get("CM_DETECTED_VERSION") or self.version)
        self.extra_tags += [tag for tag in result.get("add_extra_cache_tags") or [] if tag not in self.extra_tags]

    def instead(self, result: Mapping[str, Any]) -> Outcome:
        """End early as preprocess asks: with nothing, or with another script's run in this one's place."""
        other = result.get("script")
        if not other:
            outcome = self.result()
            outcome.skipped = True
            return outcome
        given: dict[str, Any] = {"tags": other} if isinstance(other, str) else dict(other)
        request = Request.of({**given, "env": {**self.env, **(given.get("env") or {})}}, self.folder)
        outcome = run(self.session, replace(request, const=self.const, state=self.state, adr=self.adr))
        self.deps.append(request.title())
        merge_into(self.env, outcome.new_env)
        return replace(outcome, env=self.env, deps=self.deps)

    def native(self) -> None:
        """Run run.sh, and merge what it writes to tmp-run-env.out and tmp-run-state.json."""
        from cm4vllm.engine.native import find_native, read_assignments, run_native

        path = find_native(self.script.path, self.script_name, self.env)
        if path is None:
            return
        out, state_out = self.folder / _ENV_OUT, self.folder / _STATE_OUT
        for leftover in (out, state_out):
            leftover.unlink(missing_ok=True)
        if self.state:
            (self.folder / _STATE_IN).write_text(json.dumps(self.state, default=str))
        try:
            run_native(path, self.env, self.folder, title=self.script.title(), output=self.session.output,
                       prefix=[str(line) for line in self.state.get("script_prefix") or ()])
        except CmError:
            self.show_files()
            if not flag(self.request.inputs, "ignore_script_error"):
                raise
        merge_into(self.env, read_assignments(out))
        if state_out.exists():
            self.state = merged(self.state, self.native_state(state_out))
        if not flag(self.request.inputs, "dirty"):
            for name in (_ENV_OUT, _STATE_OUT, _STATE_IN, *self.script.clean_files):
                (self.folder / name).unlink(missing_ok=True)

    def native_state(self, path: Path) -> dict[str, Any]:
        try:
            state = json.loads(path.read_bytes())
        except ValueError as error:
            raise RecipeError(f"run.sh of {self.script.title()} wrote a {path.name} that is not JSON",
                              cause=str(error)) from error
        if not isinstance(state, dict):
            raise RecipeError(f"run.sh of {self.script.title()} wrote a {path.name} that is not a mapping")
        return state

    def show_files(self) -> None:
        for name in self.script.files_on_error:
            path = self.folder / name
            if path.is_file():
                self.session.tell(f"{path}:\n{path.read_text(errors='replace')}")

    # --- dependencies ------------------------------------------------------------------------------------------------

    def run_deps(self, phase: str, *, only_dynamic: bool = False) -> None:
        for dependency in self.phases[phase]:
            dependency = dependencies.amended(dependency, self.ad + self.adr, self.env)
            if self.session.fake and dependency.skip_if_fake_run:
                continue
            if dependency.conditions.hold(self.env) and (dependency.dynamic or not only_dynamic):
                self.run_dep(dependency, phase)

    def run_dep(self, dependency: Dependency, phase: str) -> None:
        request = self.asked_of(dependency, phase, self.folder)
        self.deps.append(request.title())
        if self.session.no_deps:
            return
        outcome = run(self.session, request)
        merge_into(self.env, outcome.new_env)
        self.state = merged(self.state, outcome.new_state)
        substitute_all(self.env)

    # --- the end -----------------------------------------------------------------------------------------------------

    def result(self) -> Outcome:
        state_keys = [key for layer in self.layers for key in layer.new_state_keys]
        return Outcome(self.env, self.state, exported(self.env, self.new_env_keys), exported(self.state, state_keys),
                       self.deps, self.version)

    def check_version(self, version: str) -> None:
        if version and not self.wanted.accepts(version):
            raise CmError(f"{self.script.title()} has version {version}, but {self.wanted} is wanted",
                          remedy="install a version that fits, or ask for another one")

    def check_promises(self, new_env: Env) -> None:
        for key in self.promised_env_keys:
            if is_no(new_env.get(key, "")):
                raise RecipeError(f"{self.script.title()} ended without {key}, which its meta promises",
                                  remedy=f"set it in {self.script.path}, or take it out of promised_env_keys")

    def tell_env(self, outcome: Outcome) -> None:
        for key, label in self.script.env_at_the_end.items():
            if key in outcome.env:
                self.session.tell(f"{label}: {outcome.env[key]}", detail=len(self.session.scripts) > 1)


class _Artifact:
    """What hooks get as i['artifact']."""

    def __init__(self, path: str, meta: dict[str, Any]) -> None:
        self.path = path
        self.meta = meta
        self.original_meta = meta


_OS_INFO = {
    "platform": "linux", "bat_ext": ".sh", "set_env": "export ${key}=\"${value}\"", "env_separator": ":",
    "env_var": "${env_var}", "bat_rem": "# ${rem}", "run_local_bat": ". ./${bat_file}",
    "run_local_bat_from_python": "bash -c \". ./${bat_file}\"", "run_bat": ". ${bat_file}",
    "start_script": ["#!/bin/bash", ""], "env": {}, "env_quotes_if_space": "\"", "grep": "grep",
}
