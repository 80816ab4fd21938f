"""One test of many cases: a loop that lists every case that fails, with the reason."""

from collections.abc import Callable, Iterable


def offenders(check: Callable[..., None], cases: Iterable[tuple]) -> list[str]:
    """Call `check` with each case; return a line for each case that fails."""
    texts = []
    for case in cases:
        try:
            check(*case)
        except Exception as error:
            texts.append(f"{' '.join(map(str, case))}: {type(error).__name__}: {error}")
    return texts
