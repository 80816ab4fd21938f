"""The templates of pages, as jinja2 reads them: what is not defined is an error."""

from __future__ import annotations

import re
from functools import cache

import jinja2
from markupsafe import Markup, escape

__all__ = ["environment", "page_template"]

#: A flag in a sentence, with its value.
_FLAG = re.compile(r"(?<![^\s(])--\w[^\s<>]*")
#: A word that a browser would break within.
_WORD = re.compile(r"[^\s/?-]*[/?-]\S*")


def environment(*, autoescape: bool = True) -> jinja2.Environment:
    """Return the reader of this package's templates."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("cm4vllm.report"),
        undefined=jinja2.StrictUndefined,
        autoescape=autoescape,  # noqa: S701  Markdown escapes by its own filters
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"flags": _flags, "whole_words": _whole_words}
    return templates


def _flags(text: object) -> Markup:
    """Keep each command-line flag of a sentence on one line: a browser would break it after a hyphen."""
    return _whole(_FLAG, str(escape(text)))


def _whole_words(text: object) -> Markup:
    """Keep each word of a command on one line."""
    return _whole(_WORD, str(escape(text)))


def _whole(words: re.Pattern[str], html: str) -> Markup:
    return Markup(words.sub(r'<span class="whole">\g<0></span>', html))  # noqa: S704  what comes here is escaped


@cache
def page_template(name: str) -> jinja2.Template:
    """Return the template of a page of HTML: what is put into it is escaped."""
    return environment().get_template(name)
