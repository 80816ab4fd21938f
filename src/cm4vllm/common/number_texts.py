"""Writes numbers as text, in the same way on every page and in every message."""

from datetime import UTC, datetime


def number(value: float | int) -> str:
    """Write a number with thousands separated: whole numbers whole, others with their significant digits."""
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,.10g}" if abs(value) >= 1 else f"{value:.4g}"


def times(value: float | None) -> str:
    """Write a ratio, or `unknown`."""
    return "unknown" if value is None else f"{value:,.1f} times"


def qps(value: float) -> str:
    """Write a target QPS: as many digits as matter to anybody who sets it again."""
    return f"{value:,.6g}"


def rate(value: float) -> str:
    """Write a rate: two decimals, or three significant digits below one a second."""
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.3g}"


def ms(value: float) -> str:
    """Write milliseconds: as many decimals as say something."""
    if value < 1:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    """Write a duration in seconds, and from two minutes on also in minutes."""
    plain = f"{value:,.1f} s" if value >= 1 or value == 0 else f"{value:.3g} s"
    return plain if value < 120 else f"{plain} ({value / 60:,.1f} min)"


def percent(fraction: float) -> str:
    """Write a fraction as a percentage with one decimal, or with more where one would make it all or nothing."""
    for digits in (1, 2, 3):
        text = f"{fraction * 100:.{digits}f}"
        if float(text) not in (0, 100) or fraction in (0, 1):
            break
    return f"{text}%"


def time_text(moment: str) -> str:
    """Write a recorded time (ISO 8601) to the minute, in UTC."""
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
