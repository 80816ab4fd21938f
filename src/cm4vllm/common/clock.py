"""The present time. Nothing else asks the clock for a date: rules, plans and pages follow one day."""

from datetime import UTC, datetime


def present() -> datetime:
    """Return the present time in UTC."""
    return datetime.now(UTC)


def now() -> str:
    """Return the present time in UTC, ISO 8601, to the second."""
    return present().isoformat(timespec="seconds")
