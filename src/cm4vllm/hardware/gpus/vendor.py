"""A vendor of GPUs, as the modules of vendors/ describe it: what its driver is asked, and what vLLM needs to know.

A question that the library of a driver does not answer leaves its own fact open, and nothing else. No function of NVML
or amdsmi is called elsewhere. Which errors they raise differs with driver, library and GPU: an unknown function, a GPU
that is lost, a structure of another version, a text that is no UTF-8.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
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


def answer_of(library: Any, question: str, *args: Any) -> Any:
    """Return what the driver answers; None where it does not answer."""
    return answer_or_error(library, question, *args)[0]


def answer_or_error(library: Any, question: str, *args: Any) -> tuple[Any, Exception | None]:
    """Return what the driver answers and None, or None and the error in place of an answer."""
    try:
        return getattr(library, question)(*args), None
    except Exception as error:
        return None, error


def reason(error: Exception) -> str:
    """Return an error of a driver's library in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def constant(library: Any, name: str) -> Any:
    """Return a constant of the library, a member of an enumeration as `Kind.NAME`; None where it has none."""
    value = library
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def entry(answer: Any, key: str) -> Any:
    """Return one entry of an answer with several; None for what the driver does not know ("N/A" of amdsmi)."""
    value = answer.get(key) if isinstance(answer, Mapping) else None
    return None if value in ("N/A", "", None) else value


class Questions:
    """Questions about one device; `unanswered` has the reason for each named fact that the driver did not state."""

    def __init__(self, library: Any, device: Any) -> None:
        self.library, self.device = library, device
        self.unanswered: dict[str, str] = {}

    def __call__(self, question: str, *more: Any, fact: str = "") -> Any:
        """Return what the driver answers of the device; None where it does not answer."""
        value, error = answer_or_error(self.library, question, self.device, *more)
        if fact and error is not None:
            self.unanswered[fact] = reason(error)
        return value
