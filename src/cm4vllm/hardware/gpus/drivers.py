"""Questions to the library of a GPU driver: one that is not answered leaves its own fact open, and nothing else.

Nothing else calls a function of NVML or amdsmi. Which errors they raise differs with driver, library and GPU: an
unknown function, a GPU that is lost, a structure of another version, a text that is no UTF-8.
"""

from collections.abc import Mapping
from typing import Any


def asked(library: Any, question: str, *args: Any) -> Any:
    """Return what the driver answers; None where it does not answer."""
    return answered(library, question, *args)[0]


def answered(library: Any, question: str, *args: Any) -> tuple[Any, Exception | None]:
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
        value, error = answered(self.library, question, self.device, *more)
        if fact and error is not None:
            self.unanswered[fact] = reason(error)
        return value
