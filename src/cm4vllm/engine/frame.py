"""One script as it is asked for, before anything of it runs: what a run acts on and a plan tells."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from cm4vllm.engine import dependencies
from cm4vllm.engine.cache import Identity
from cm4vllm.engine.conditions import Conditions
from cm4vllm.engine.documents import merged
from cm4vllm.engine.environment import as_text, compose, merge_into, secret_key, substitute, substitute_all
from cm4vllm.engine.meta import STEPS, Dependency, Layer, ScriptMeta
from cm4vllm.engine.request import Request, check_flags, flag, mapped_inputs
from cm4vllm.engine.variations import resolve
from cm4vllm.engine.versions import Wanted

__all__ = ["Frame"]


class Frame:
    """A script with a request of it: variations, environment, dependencies and cache key.

    Nothing of it is shared with another frame. Raises UsageError for flags and variations that are not there.
    """

    def __init__(self, request: Request, script: ScriptMeta, *, fake: bool = False) -> None:
        unknown_flags = check_flags(script, request.inputs)
        # What recipes hand to each other may hold more than the other knows; a person's word does not.
        self.notes = [f"WARNING: {text}" for text in unknown_flags] if request.from_person else []
        self.request = request
        self.script = script
        self.fake = fake
        self.variations = resolve(script, request.variations, request.excluded_variations)
        self.wanted = request.wanted.or_else(Wanted.from_environment(request.env)).or_else(script.wanted)
        self.version = ""
        self.compose(None)

    def compose(self, version: Layer | None) -> None:
        """Make environment, constants, state and dependencies from all layers."""
        script, request = self.script, self.request
        special, mapped = mapped_inputs(script, request.inputs)
        layers = [variation.layer for variation in self.variations.layers]
        caller = {**request.env, **special, **self.wanted.environment()}
        self.env, self.const = compose(caller, script.layer, layers, version, {**request.const, **mapped},
                                       explicit=request.explicit)
        self.state: dict[str, Any] = copy.deepcopy(dict(request.state))
        self.layers = [script.layer, *layers, *([version] if version else [])]
        for layer in self.layers:
            self.state = merged(merged(self.state, layer.state), layer.const_state)
        for layer in self.layers:
            for update in layer.updates:
                if self.holds(update.conditions):
                    merge_into(self.env, {key: value for key, value in update.env.items() if key not in self.const})
                    self.state = merged(self.state, update.state)
        substitute_all(self.env)
        if self.fake:
            self.env["CM_TMP_FAKE_RUN"] = "yes"
        self.phases = dependencies.collect(self.layers)
        self.steps = dependencies.collect(self.layers, [STEPS])[STEPS]
        self.ad = tuple(amendment for layer in self.layers for amendment in layer.ad) + request.ad
        # The caller's changes come last: what is said on the command line wins.
        self.adr = tuple(amendment for layer in self.layers for amendment in layer.adr) + request.adr
        dependencies.check_names(script, self.phases, self.ad)

    def holds(self, conditions: Conditions) -> bool:
        return conditions.hold(self.env)

    def remarks(self) -> list[str]:
        """Return a line for each flag that nobody knows, and for each --env that something stronger overrides."""
        notes = list(self.notes)
        for key in self.request.explicit:
            given = as_text(self.request.env[key])
            if self.env.get(key) != given and "<<<" not in str(given):
                notes.append(f"note: --env.{key}={given} gives way to {self.env.get(key)!r}, which a variation or "
                             f"an input says; --const.{key}={given} would not")
        return notes

    @property
    def is_kept(self) -> bool:
        """Whether what the script makes is kept in the cache."""
        inputs = self.request.inputs
        return (self.script.cache and not flag(inputs, "skip_cache", "force_skip_cache")) or (
            self.script.can_force_cache and flag(inputs, "force_cache"))

    @property
    def is_real(self) -> bool:
        """Whether the script's own part runs: not in a fake run, and not of the script that is only prepared."""
        return not self.fake and not flag(self.request.inputs, "prepare")

    def settle_version(self) -> None:
        """Fall back to the default version, and take in what the meta says of the version."""
        default = next((layer.default_version for layer in reversed(self.layers) if layer.default_version), "")
        settled = self.wanted.with_default(default)
        raw = self.script.versions.get(settled.version)
        if settled != self.wanted or raw is not None:
            asked, self.wanted = self.wanted, settled
            self.compose(Layer.of(raw) if raw is not None else None)
            self.wanted = asked
        self.version = settled.version

    def identity(self) -> Identity:
        """Return what the cache knows this run by: all that it declares to depend on, as it stands before it runs."""
        declared = set(self.script.input_mapping.values())
        for layer in self.layers:
            declared |= {*layer.env, *layer.default_env, *layer.const}
        inputs = {key: self.env[key] for key in declared
                  if key in self.env and not key.startswith("CM_TMP_") and not secret_key(key)}
        extra = [tag for tag in self.cache_tags() if tag not in self.script.tags and not tag.startswith("_")]
        return Identity(self.script.uid or str(self.script.path), self.variations.names, inputs, tuple(extra))

    def cache_tags(self) -> list[str]:
        env = self.env
        tags = [*self.script.tags, *(f"_{name}" for name in self.variations.names)]
        tags += [*substitute(list(self.request.extra_cache_tags), env), *_split(env.get("CM_EXTRA_CACHE_TAGS"))]
        if env.get("CM_NAME"):
            tags.append(f"name-{str(env['CM_NAME']).lower()}")
        for key, prefix in self.script.cache_tags_from_env:
            tags += [f"deps-{prefix}{value}" for value in _split(env.get(key))]
        return list(dict.fromkeys(tags))

    @property
    def script_name(self) -> str:
        return next((layer.script_name for layer in reversed(self.layers) if layer.script_name), "")

    @property
    def new_env_keys(self) -> list[str]:
        """The patterns of the keys that it hands back."""
        return [key for layer in self.layers for key in layer.new_env_keys] + [*self.request.force_new_env_keys]

    @property
    def promised_env_keys(self) -> list[str]:
        """The keys that it hands back set to something that does not say no, whatever happens."""
        return [key for layer in self.layers for key in layer.promised_env_keys]

    def asked_of(self, dependency: Dependency, phase: str, folder: Path) -> Request:
        """Return what a dependency is asked for, given the environment as it stands now."""
        return dependencies.request_for(
            dependency, script=self.script, variations=self.variations, env=self.env, const=self.const,
            state=self.state, adr=self.adr, phase=phase, folder=folder)


def _split(value: Any) -> list[str]:
    return [part for part in str(value or "").split(",") if part]
