"""Numbers that carry their unit, so that tokens/s cannot stand where samples/s belongs."""

from typing import ClassVar


class Quantity(float):
    """A number of one unit. Arithmetic gives a plain float: the result's unit is for the caller to state."""

    unit: ClassVar[str] = ""
    digits: ClassVar[int] = 2

    def __init_subclass__(cls, unit: str, digits: int = 2) -> None:
        cls.unit, cls.digits = unit, digits

    def __str__(self) -> str:
        return f"{float(self):,.{self.digits}f} {self.unit}"

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)


class SamplesPerSecond(Quantity, unit="samples/s"):
    """A rate of samples."""


class TokensPerSecond(Quantity, unit="tokens/s"):
    """A rate of tokens."""


class TokensPerSample(Quantity, unit="tokens/sample"):
    """A length of answers."""


class Milliseconds(Quantity, unit="ms", digits=1):
    """A latency."""


class Seconds(Quantity, unit="s", digits=1):
    """A duration."""


class Samples(Quantity, unit="samples", digits=0):
    """A count of samples."""


class Queries(Quantity, unit="queries", digits=0):
    """A count of queries."""


def four_digits(value: float) -> str:
    """Return a number with four significant digits, thousands separated and never with an exponent: 81,460; 24.21."""
    return f"{float(f'{value:.4g}'):,.10g}"


def size_text(size: float) -> str:
    """Return a number of bytes as people read it: 2.6 GB, 140 MB, 12 kB."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"


def duration_text(seconds: float) -> str:
    """Return a time as 4:07, or 1:04:07."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
