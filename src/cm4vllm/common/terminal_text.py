"""Text for a terminal: that of other programs (logs of servers, bodies of errors, names in files) made safe; tables."""

import re
from collections.abc import Collection, Iterable, Sequence

#: The escape sequences of ECMA-48: CSI (colours, cursor), the strings OSC, DCS, SOS, PM and APC with what ends them
#: (ST, or BEL), and the short ones. An unfinished string ends with its line.
_SEQUENCE = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-Z\\`-~]"
)
#: The other characters that a terminal obeys instead of showing: C0 but tab and line feed, DEL, C1, line and paragraph
#: separators, the marks that turn the direction of writing; and halves of surrogates, which cannot be encoded.
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"

#: The most digits of a count of hardware, a year, a version.
_DIGITS = 9


def printable(text: str) -> str:
    """Return the text without escape sequences; other control characters are spelled as in Python."""
    if text.replace("\n", "").isprintable():
        return text  # nearly always: the patterns are compiled where they are needed, every start would pay for them
    bare = re.sub(_SEQUENCE, "", text.replace("\r\n", "\n").replace("\r", "\n"))
    return re.sub(_CONTROL, lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), bare)


def whole_number(value: object) -> int | None:
    """Return a count from a file of unknown origin; None if it is none ("²", a negative number, a page of digits)."""
    text = "" if isinstance(value, float | int) and not 0 <= value < 10**_DIGITS else str(value).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def one_line(text: str) -> str:
    """Return the printable text with its lines joined by spaces."""
    return " ".join(printable(text).split())


def columns(rows: Iterable[Sequence[str]], *, numbers: Collection[int] = ()) -> list[str]:
    """Return the rows of a table as lines of aligned columns, those of `numbers` to the right."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if at in numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def first_of(words: Sequence[str], most: int, between: str = ", ") -> str:
    r"""Return the first `most` words as one text, and how many more there are; `between` is ", " or "\n"."""
    more = f"{between.lstrip(',')}and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more


def spelled_out(text: str) -> str:
    r"""Return a text of others, as a file's name, as one line: each control character is spelled as in Python.

    Nothing is taken out of it: a line feed is shown as \n, an escape sequence as \x1b[2J, and a byte that is no UTF-8,
    as Python reads it in a file's name, as \xe9.
    """
    return text if text.isprintable() else re.sub(rf"{_CONTROL}|[\t\n]", _spelling, text)


def _spelling(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # what surrogateescape makes of a byte
        return f"\\x{code - 0xDC00:02x}"
    return match[0].encode("unicode_escape", "surrogatepass").decode()
