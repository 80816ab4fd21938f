"""Types of named fields that take next to nothing to define: every `cm` command defines all of the engine's again.

The records of other packages are msgspec's. The engine has a type of its own because its start has no time for that
module: to import it takes three times the processor time of Python's own start (29 ms against 10 ms). A frozen
dataclass of ten fields takes 0.7 ms to define, one of these 0.01 ms. Fields are what the class annotates, in order; a
default must be immutable, for all instances share it.
"""

from typing import Any, Self, dataclass_transform


@dataclass_transform(frozen_default=True)
class Value:
    """A type of named fields; they can be set only where a class says `frozen=False`."""

    _fields: tuple[str, ...] = ()
    _names: frozenset[str] = frozenset()

    def __init_subclass__(cls, *, frozen: bool = True) -> None:
        if not frozen:
            cls.__setattr__ = object.__setattr__  # type: ignore[method-assign, assignment]
        cls._fields = (*cls._fields, *cls.__annotations__)
        cls._names = frozenset(cls._fields)

    def __init__(self, *values: Any, **named: Any) -> None:
        """Take the values of the fields, in their order or by name. Raises TypeError as a function call would."""
        own = self.__dict__
        own.update(zip(self._fields, values, strict=False))
        own.update(named)
        # All are given, each once and by its name: most are made so, and need no further look.
        if not len(self._fields) == len(own) == len(values) + len(named) or not self._names.issuperset(named):
            self._check(len(values), named)

    def _check(self, count: int, named: dict[str, Any]) -> None:
        """Raise TypeError for the first value that is too many, unknown or missing; `count` were given by place."""
        name, left = type(self).__name__, self._fields[count:]
        if count > len(self._fields):
            raise TypeError(f"{name} has {len(self._fields)} fields, not {count}")
        if strange := named.keys() - set(left):
            raise TypeError(f"{name} has no field {min(strange)!r}, or has it twice")
        if len(named) < len(left) and (missing := [field for field in left if not hasattr(self, field)]):
            raise TypeError(f"{name} has no value for its field {missing[0]!r}")

    def but(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        if strange := changes.keys() - self._names:
            raise TypeError(f"{type(self).__name__} has no field {min(strange)!r}")
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changes)
        return other

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, field) == getattr(other, field) for field in self._fields
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{field}={getattr(self, field)!r}' for field in self._fields)})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")
