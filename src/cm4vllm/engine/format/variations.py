"""Choice of a script's variations, and the order in which they apply."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.engine.format.meta import ScriptMeta, Variation
from cm4vllm.engine.format.value import Value


class Resolution(Value):
    """The variations that are on, in the order of application, combinations of them last.

    `groups` maps each group to its one variation that is on.
    """

    active: tuple[Variation, ...]
    combinations: tuple[Variation, ...]
    groups: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the variations that are on, in the order in which they apply."""
        return tuple(variation.name for variation in self.active)

    @property
    def layers(self) -> tuple[Variation, ...]:
        """Return the variations and combinations that are on, in the order in which they apply."""
        return (*self.active, *self.combinations)

    def inheritable_names(self, without_groups: Collection[str]) -> tuple[str, ...]:
        """Return the names that a dependency with inherit_variation_tags gets."""
        return tuple(v.name for v in self.active if v.group not in without_groups or not v.group)


def definition(variations: Mapping[str, Any], name: str) -> str:
    """Return the key under which `name` is defined: itself, or `stem.#`; empty when it is not defined."""
    if name.endswith(".#"):
        return ""
    if name in variations:
        return name
    stem = name
    while "." in stem:
        stem = stem.rpartition(".")[0]
        if f"{stem}.#" in variations and len(name) > len(stem) + 1 and not name.endswith("."):
            return f"{stem}.#"
    return ""


def as_typed(names: Iterable[str]) -> list[str]:
    """Return names of variations as people type them: a dynamic one with a value, and no combinations."""
    return [name.replace("#", "<value>") for name in names if "," not in name]


def are_defined(script: ScriptMeta, names: Collection[str]) -> bool:
    """Return True if a script defines all these variations."""
    return all(definition(script.variations, name) for name in names)


def without_replaced(script: ScriptMeta, chosen: Sequence[str], batches: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the chosen variations without those that a later batch replaces with others of the same group."""
    added = {name for batch in batches for name in batch}
    kept = tuple(name for name in chosen if name not in added)
    for batch in batches:
        groups = {_group(script, name) for name in batch} - {""}
        kept = (*(name for name in kept if name not in batch and _group(script, name) not in groups), *batch)
    return kept


def _group(script: ScriptMeta, name: str) -> str:
    raw = script.variations.get(definition(script.variations, name)) or {}
    return str(raw.get("group") or "")


def resolve(script: ScriptMeta, chosen: Sequence[str], excluded: Collection[str] = ()) -> Resolution:
    """Return the variations that are on when `chosen` are asked for and `excluded` forbidden.

    Raises UsageError for one that is not defined, two of one group, a forbidden base and a forbidden combination.
    """
    resolver = _Resolver(script, frozenset(excluded))
    for name in chosen:
        resolver.add(name)
    if not chosen and script.default_variation and script.default_variation not in excluded:
        resolver.add(script.default_variation)
    resolver.expand()
    defaults = [name for name, raw in script.variations.items() if raw.get("default") and "#" not in name]
    resolver.add_choices((group, name) for name in reversed(defaults) if (group := _group(script, name)))
    resolver.expand()
    return resolver.result()


class _Resolver:
    def __init__(self, script: ScriptMeta, excluded: frozenset[str]) -> None:
        self.script = script
        self.excluded = excluded
        self.order: list[str] = []
        self.expanding: list[str] = []

    def variation(self, name: str) -> Variation:
        """Return the variation of a name. Raises UsageError, naming the nearest one, for an unknown name."""
        key = definition(self.script.variations, name)
        if not key:
            raise UsageError(
                f"{self.script.title()} has no variation {name!r}",
                cause=f"asked for as _{name}",
                remedy=nearest(
                    name, as_typed(self.script.variations), f"list them with: cm show script {self.script.alias}"
                ),
            )
        return self.script.variation(key, name, name[len(key) - 1 :] if key.endswith(".#") else None)

    def add(self, name: str, before: str | None = None) -> None:
        """Turn `name` on, before another one where its own layer shall come first; its alias' target precedes it."""
        if name in self.order:
            return
        variation = self.variation(name)
        at = self.order.index(before) if before in self.order else len(self.order)
        self.order.insert(at, name)
        if variation.alias:
            self.add(variation.alias, before=name)

    def expand(self) -> None:
        """Turn on what is implied, until nothing more is."""
        size = -1
        while size != len(self.order):
            size = len(self.order)
            for name in list(self.order):
                self.add_bases(name)
            for variation in self.combinations():
                for base in variation.base:
                    self.add_base(variation, base, before=self.order[0])
            for variation in [*map(self.variation, list(self.order)), *self.combinations()]:
                self.add_choices(variation.default_variations.items())

    def add_bases(self, name: str) -> None:
        """Switch on the variations that this one builds on, before it."""
        if name in self.expanding:
            return  # a base of itself, as in some public scripts: it is on, and no more is asked
        self.expanding.append(name)
        for base in self.variation(name).base:
            self.add_base(self.variation(name), base, before=name)
        self.expanding.pop()

    def add_base(self, variation: Variation, base: str, before: str) -> None:
        """Switch on one base of a variation. Raises UsageError if the request excludes it."""
        if base in self.excluded:
            raise UsageError(
                f"variation _{variation.name} of {self.script.title()} builds on _{base}, which is excluded",
                remedy=f"leave out either _{variation.name} or -_{base}",
            )
        key = definition(self.script.variations, base)
        if key.endswith(".#") and any(definition(self.script.variations, on) == key for on in self.order):
            return  # another value of the same dynamic variation is on already, and stays
        self.add(base, before=before)
        self.add_bases(base)

    def add_choices(self, choices: Iterable[tuple[str, str]]) -> None:
        """Turn on the variation that is named beside each group of which none was on before."""
        on = {self.variation(name).group for name in self.order}
        for group, name in choices:
            if group not in on and name not in self.excluded:
                self.add(name, before=self.order[0] if self.order else None)

    def combinations(self) -> list[Variation]:
        """Return the combined variations whose parts are all on, shorter ones first."""
        sized = []
        for key in self.script.variations:
            if "," not in key:
                continue
            parts = [part.strip() for part in key.split(",")]
            matches = [self.part_on(part) for part in parts]
            if all(matches):
                value = next(
                    (
                        on[len(part) - 1 :]
                        for part, on in zip(parts, matches, strict=True)
                        if part.endswith(".#") and on
                    ),
                    None,
                )
                sized.append((len(parts), self.script.variation(key, key, value)))
        return [variation for _, variation in sorted(sized, key=lambda item: item[0])]

    def part_on(self, part: str) -> str:
        """Return the selected variation that matches a part of a combined one (`name`, `name.#`); empty without one."""
        if part.endswith(".#"):
            return next((name for name in self.order if definition(self.script.variations, name) == part), "")
        return part if part in self.order else ""

    def result(self) -> Resolution:
        """Return the variations that are on.

        Raises UsageError for two of one group, or a combination that is not allowed.
        """
        active = tuple(self.variation(name) for name in self.order)
        groups: dict[str, str] = {}
        for variation in active:
            if not variation.group:
                continue
            if variation.group in groups:
                raise UsageError(
                    f"variations _{groups[variation.group]} and _{variation.name} of {self.script.title()} "
                    "exclude each other",
                    cause=f"both belong to the group {variation.group!r}",
                    remedy="choose one of them",
                )
            groups[variation.group] = variation.name
        for forbidden in self.script.invalid_combinations:
            if forbidden <= set(self.order):
                raise UsageError(
                    f"variations {', '.join(f'_{name}' for name in sorted(forbidden))} of "
                    f"{self.script.title()} cannot be combined",
                    remedy="leave one of them out",
                )
        valid = self.script.valid_combinations
        if valid and not any(combined <= set(self.order) for combined in valid):
            raise UsageError(
                f"{self.script.title()} does not permit this combination of variations",
                cause=f"on are: {', '.join(f'_{name}' for name in self.order) or 'none'}",
                remedy="choose "
                + " or ".join(",".join(f"_{name}" for name in sorted(combination)) for combination in valid),
            )
        return Resolution(active, tuple(self.combinations()), groups)
