"""A vendor of GPUs, as the modules of vendors/ describe it: what its driver is asked, and what vLLM needs to know."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from cm4vllm.records.energy import Counter
from cm4vllm.records.machine import GpuFacts
from cm4vllm.records.metrics import GpuSample

#: Reads a counter now; None where it does not respond.
Read = Callable[[], int | None]


@dataclass(frozen=True)
class Filter:
    """A variable by which programs see some GPUs only, the first of `names` that is set, and how a driver reads it.

    An empty one hides all GPUs if `empty_hides`, and counts as not set otherwise. A number may be followed by other
    characters where `loose`. A GPU that is named twice hides all of them if `repeated_hides`, else it counts once.
    Numbers follow the PCI bus, where there is an `order_variable` only if it says so.
    """

    names: tuple[str, ...]
    empty_hides: bool = True
    loose: bool = False
    repeated_hides: bool = False
    order_variable: str = ""


@dataclass(frozen=True)
class GpuUse:
    """The use of a GPU: the bytes in use, None where they are not stated, and the processes that compute on it."""

    name: str
    used_bytes: int | None
    processes: frozenset[int]


class Vendor(ABC):
    """A vendor. `library` is what `opened` yields, which stands for its driver.

    `order` is the place among vendors where a machine has GPUs of several. `device` is the value of --device and the
    build of vLLM for its GPUs. Each of `filters` numbers what the one before it leaves; the variables of the last one
    choose the GPUs of a server. A vendor whose driver does not answer a question keeps the method that is here.
    """

    name: ClassVar[str]
    order: ClassVar[int]
    device: ClassVar[str]
    library: ClassVar[str]
    filters: ClassVar[tuple[Filter, ...]]

    @abstractmethod
    def opened(self) -> AbstractContextManager[Any]:
        """Return a context that yields the library of the driver; None where the driver is missing."""

    @abstractmethod
    def gpus(self, library: Any) -> list[GpuFacts]:
        """Return the GPUs that the driver shows, in its order."""

    @abstractmethod
    def why_none(self) -> str:
        """Return why no GPU of this vendor can be used; empty where one can."""

    def is_loaded(self) -> bool:
        """Return True if a driver is loaded whose GPUs the library may not show."""
        return False

    def silent(self, library: Any) -> list[str]:
        """Return in words the GPUs that the driver counts and that do not respond."""
        return []

    def samples(self, library: Any) -> list[GpuSample]:
        """Return what each GPU does just now."""
        return []

    def use(self, library: Any) -> dict[str, GpuUse]:
        """Return the use of each GPU by its UUID."""
        return {}

    def throttling(self, library: Any) -> dict[str, float]:
        """Return the seconds in which GPUs were slowed down so far, by GPU and cause."""
        return {}

    def counters(self, library: Any) -> Iterator[tuple[Counter, Read]]:
        """Yield the energy counters of boards."""
        return iter(())
