"""The templates of pages, as jinja2 reads them: what is not defined is an error."""

import re
from functools import cache, partial

import jinja2
from markupsafe import Markup, escape

from cm4vllm.common.number_texts import ms, number, percent, rate, seconds, time_text, times
from cm4vllm.results.figure_texts import (
    counting_words,
    headroom,
    judgement,
    metric_words,
    result_figure,
    target,
    target_name,
    target_value,
)

#: What templates write numbers and figures with: `w` in each of them.
_WRITERS = (
    counting_words,
    headroom,
    judgement,
    metric_words,
    ms,
    number,
    percent,
    rate,
    result_figure,
    seconds,
    target,
    target_name,
    target_value,
    times,
    time_text,
)
#: A flag in a sentence, with its value.
_FLAG = re.compile(r"(?<![^\s(])--\w[^\s<>]*")
#: A word that a browser would break within.
_WORD = re.compile(r"(?<!\S)[^\s/?-]*+[/?-]\S*")


def environment(*, autoescape: bool = True) -> jinja2.Environment:
    """Return the reader of this package's templates."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("cm4vllm.report"),
        undefined=jinja2.StrictUndefined,
        autoescape=autoescape,  # noqa: S701  Markdown escapes by its own filters
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "flags": partial(_without_line_breaks, _FLAG),
        "whole_words": partial(_without_line_breaks, _WORD),
    }
    templates.globals["w"] = {writer.__name__: writer for writer in _WRITERS}
    return templates


def _without_line_breaks(words: re.Pattern[str], text: object) -> Markup:
    """Return a text in which no browser breaks one of these words after a hyphen."""
    return Markup(words.sub(r'<span class="whole">\g<0></span>', str(escape(text))))  # noqa: S704  it is escaped


@cache
def page_template(name: str) -> jinja2.Template:
    """Return the template of a page of HTML: what is put into it is escaped."""
    return environment().get_template(name)
