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

    def __init_subclass__(cls, *, frozen: bool = True) -> None:
        if not frozen:
            cls.__setattr__ = object.__setattr__  # type: ignore[method-assign, assignment]
        cls._fields = (*cls._fields, *cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        """Take the values of the fields, in their order or by name; mypy finds those that are missing or unknown."""
        self.__dict__.update(zip(self._fields, values, strict=False), **named)

    def but(self, **changes: Any) -> Self:
        """Return a copy with some fields changed. Raises TypeError for a field that there is not."""
        if strange := changes.keys() - set(self._fields):
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
