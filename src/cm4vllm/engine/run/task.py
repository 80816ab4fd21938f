"""One script as it is asked for, with all that is settled before anything of it runs."""

from __future__ import annotations

from collections.abc import Mapping

from cm4vllm.engine.format.meta import Amendment, Layer, ScriptMeta
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.variations import Resolution, resolve
from cm4vllm.engine.format.versions import Wanted
from cm4vllm.engine.run.request import Request, check_flags, flag

__all__ = ["Task"]


class Task(Value):
    """A script to run, immutable. `layers` are its meta, its variations in order, and the meta of its version."""

    request: Request
    script: ScriptMeta
    variations: Resolution
    wanted: Wanted
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, script: ScriptMeta, request: Request) -> Task:
        """Settle variations and versions.

        Raises UsageError for impossible variations, and for unknown flags where the script is strict about its input;
        else these are `notes`.
        """
        notes = check_flags(script, request.inputs)
        variations = resolve(script, request.variations, request.excluded_variations)
        wanted = request.wanted.or_else(Wanted.from_environment(request.env)).or_else(script.wanted)
        # What a recipe hands on is not what a person mistyped.
        told = tuple(f"WARNING: {note}" for note in notes) if request.from_person else ()
        task = cls(request, script, variations, wanted, (), told)
        return task.of_version(wanted)

    def of_version(self, wanted: Wanted) -> Task:
        """Return this task when `wanted` is asked for: what the meta says of that version is its last layer."""
        layers = (self.script.layer, *(variation.layer for variation in self.variations.layers))
        version = self.script.version(wanted.version)
        return self.but(wanted=wanted, layers=layers if version is None else (*layers, version))

    def settled(self) -> Task:
        """Return this task with the default version where none was asked for: it counts only when nothing is cached."""
        default = next((layer.default_version for layer in reversed(self.layers) if layer.default_version), "")
        wanted = self.wanted.with_default(default)
        return self if wanted == self.wanted else self.of_version(wanted)

    @property
    def ad(self) -> tuple[Amendment, ...]:
        """Changes to dependencies of this script alone."""
        return tuple(amendment for layer in self.layers for amendment in layer.ad) + self.request.ad

    @property
    def adr(self) -> tuple[Amendment, ...]:
        """Changes that are passed down; the caller's come last: what is said on the command line wins."""
        return tuple(amendment for layer in self.layers for amendment in layer.adr) + self.request.adr

    @property
    def script_name(self) -> str:
        """Return the name of the shell file that is asked for; empty for the usual one."""
        return next((layer.script_name for layer in reversed(self.layers) if layer.script_name), "")

    @property
    def new_env_keys(self) -> tuple[str, ...]:
        """The patterns of the keys that it hands back: the caller's, where it forces them, or those of the layers."""
        return self.request.force_new_env_keys or tuple(key for layer in self.layers for key in layer.new_env_keys)

    @property
    def promised_env_keys(self) -> tuple[str, ...]:
        """The keys that it hands back set to something that does not say no, whatever happens."""
        return tuple(key for layer in self.layers for key in layer.promised_env_keys)

    @property
    def is_cached(self) -> bool:
        """Tell whether the cache keeps what the script makes."""
        inputs: Mapping[str, object] = self.request.inputs
        asked_not_to = flag(inputs, "skip_cache", "force_skip_cache")
        return (self.script.cache and not asked_not_to) or (self.script.can_force_cache and flag(inputs, "force_cache"))

    def title(self) -> str:
        """Return the script's own tags and the variations that are on, as they would be typed."""
        return ",".join((*self.script.tags, *(f"_{name}" for name in self.variations.names)))
