"""Escapes of a text inside other texts: JSON, URLs, pages, CSV, a shell's words."""

from __future__ import annotations

import re

__all__ = ["spellings"]


def spellings(text: str) -> set[str]:
    """Return a text as it may stand in JSON, in a URL, on a page, in CSV, and between a shell's quotes."""
    if re.fullmatch(r"[\w.~-]*", text, re.ASCII):
        return {text}
    import html
    import json
    from urllib.parse import quote, quote_plus

    page, raw = html.escape(text), _bytes(text)
    return {
        text,
        repr(text)[1:-1],
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        quote(raw, safe=""),
        quote(raw),
        quote_plus(raw),
        text.replace("'", "'\"'\"'"),
        text.replace('"', '""'),
        page,
        html.escape(text, quote=False),
        page.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    }


def _bytes(text: str) -> bytes:
    """Return the bytes of a text, including bytes from an environment that are not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair, out of JSON
        return text.encode("utf-8", "backslashreplace")
