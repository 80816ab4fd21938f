"""The templates of pages, as jinja2 reads them: what is not defined is an error."""

from __future__ import annotations

from functools import cache

import jinja2

__all__ = ["environment", "page_template"]


def environment(*, autoescape: bool = True) -> jinja2.Environment:
    """Return what reads templates of this package."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("cm4vllm.report"),
        undefined=jinja2.StrictUndefined,
        autoescape=autoescape,  # noqa: S701  Markdown escapes by its own filters
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def page_template(name: str) -> jinja2.Template:
    """Return the template of a page of HTML: what is put into it is escaped."""
    return environment().get_template(name)
