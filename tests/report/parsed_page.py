"""A page as a strict reader sees it, and its figures taken back to their files."""

import re
from html.parser import HTMLParser

import msgspec
import pytest

VOID = {"meta", "br", "link", "img", "input", "hr", "col"}


LOADING = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in order, and what it could load or run is noted."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.headings: list[int] = []
        self.titles: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        self.elements.append((tag, dict(attrs)))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.open, self.getpos())

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "caption"):
            self.texts.append(data)
        if self.open and self.open[-1] in ("h1", "h2"):
            self.titles.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def ids(self):
        return [a["id"] for _, a in self.elements if a.get("id")]  # type: ignore[misc]


def traced(page, *roots):
    """Take each figure of a page back to its file and field, and return how many there are."""
    figures = [(float(a["value"] or ""), a["data-unit"], a["title"] or "") for tag, a in page.elements if tag == "data"]
    for value, unit, source in figures:
        values = [read_back(part, unit or "", value, roots) for part in source.removeprefix("mean of ").split(" and ")]
        assert value == pytest.approx(sum(values) / len(values), rel=1e-12), source
    return len(figures)


def read_back(source, unit, value, roots):
    """Return what a file has in a field, in a unit; of two that stand for the same, the one that the page has."""
    file, _, field = source.partition(": ")
    field, _, divisor = field.partition(", divided by ")
    path = next(root / file for root in roots if (root / file).is_file())
    if file.endswith("accuracy.json"):
        scores = msgspec.json.decode(path.read_bytes())["scores"]
        return float(next(s["value"] for s in scores if s["label"] == field.removeprefix("scores.")))
    keys = field.split(", ")
    entries = [msgspec.json.decode(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]
    logged = [entry["value"] for entry in entries if entry["key"] in keys]
    if unit == "tokens/sample":
        return tokens_of_a_sample({entry["key"]: entry["value"] for entry in entries if entry["key"] in keys})
    if unit == "samples" and value == logged[0] * logged[-1]:
        return value
    return float(logged[0]) / {"ms": 1e6}.get(unit, 1) / float(divisor.partition(" ")[0] or 1)


def tokens_of_a_sample(logged):
    samples = logged["result_query_count"] * (logged.get("generated_samples_per_query") or 1)
    rate = next(value for key, value in logged.items() if key.endswith("tokens_per_second"))
    if "result_max_latency_ns" in logged:
        return rate * logged["result_max_latency_ns"] / 1e9 / samples
    return rate * (samples - 1) / logged["result_completed_samples_per_sec"] / samples
