"""README, docs/ and the recipes' pages: links lead somewhere, commands are accepted, no phrase is one to avoid."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from cmind.cli import parse

from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.engine.run.request import Request, Task
from cm4vllm.engine.run.scope import Scope
from recipes import recipes

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    path
    for pattern in ("*.md", "docs/*.md", "script/*/README.md", ".github/*/*.md")
    for path in sorted(ROOT.glob(pattern))
]
MAIN = "run-mlperf-inference-app"


def faults_of(paths, faults):
    """Return the files, by their names, in which `faults` finds any."""
    return {str(path.relative_to(ROOT)): own for path in paths if (own := faults(path))}


# --- links ------------------------------------------------------------------------------------------------------------

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^( {4}|\t)[^\n]*$|```.*?```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def slug(heading: str) -> str:
    """Return the anchor that GitHub and mkdocs make of a heading."""
    words = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(
        slug(line.lstrip("#")) for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("#")
    )


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for link in LINK.findall(CODE.sub("", text)):
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_every_relative_link_resolves():
    assert faults_of(PAGES, lambda page: broken_links(page, page.read_text(encoding="utf-8"))) == {}
    text = "    make run\n\n[a](docs/none.md) [b](README.md#no-such) [c](#try-it) [d](https://example.org) `[e](none)`"
    assert broken_links(ROOT / "README.md", text) == ["docs/none.md", "README.md#no-such"]


def test_every_page_of_docs_is_reached_from_the_readme():
    linked = {
        link.partition("#")[0]
        for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]
        for link in LINK.findall(page.read_text(encoding="utf-8"))
    }
    assert [page.name for page in ROOT.glob("docs/*.md") if not {page.name, f"docs/{page.name}"} & linked] == []


# --- width ------------------------------------------------------------------------------------------------------------

WIDTH = 120


def wide_lines(text: str) -> list[int]:
    """Return the numbers of the lines that are too long, rows of tables too. One word cannot be broken."""
    return [number for number, line in enumerate(text.splitlines(), 1) if len(line) > WIDTH and len(line.split()) > 1]


def test_every_line_fits_the_width():
    assert faults_of(PAGES, lambda page: wide_lines(page.read_text(encoding="utf-8"))) == {}
    long = "word " * 30
    assert wide_lines(f"short\n{long}\n| {long} |\n{'x' * 130}\n    {long}") == [2, 3, 5]


# --- commands ---------------------------------------------------------------------------------------------------------

COMMAND = re.compile(r"\bcm run (?:[\w-]+:)?script ([^`\n]*)")
#: Stands in a page for what the reader knows, and takes no part in what a recipe accepts.
OPEN = re.compile(r"--tags=(?:\.\.\.|…|<)|<(?:tag|release)>|=…")


def commands(text: str) -> Iterator[str]:
    """Yield the arguments of each `cm run script` in a page, unless the next line shows the error that it ends with.

    A line that ends with a backslash goes on in the next.
    """
    text = re.sub(r"\\\n\s*", "", text)
    for match in COMMAND.finditer(text):
        words = re.sub(r"\s+#.*|\s+&$", "", match[1]).strip()
        if (
            words.startswith("--tags=")
            and not OPEN.search(words)
            and not text[match.end() :].lstrip().startswith("CM error")
        ):
            yield words
    for match in re.finditer(r'^ {4}make run ARGS="([^"]*)"', text, re.MULTILINE):
        yield f"--tags=run-mlperf,inference,_vllm {match[1]}"


def accept(words: str, folder: Path) -> None:
    """Take a command as the engine does until its first hook; for the main job check its settings. Raises CmError."""
    given = parse(["run", "script", *shlex.split(words)])["cm_input"]
    request = Request.of(
        {key: value for key, value in given.items() if key not in ("action", "automation")}, str(folder)
    )
    meant = [script for script in recipes().values() if set(request.tags) <= set(script.tags)]
    if len(meant) != 1:
        raise UsageError(f"{words}: {len(meant)} recipes have these tags")
    env = Scope.of(Task.of(meant[0], request)).env
    if meant[0].path.name == MAIN:
        Job.of(CampaignSettings.of(env))


def refused(text: str, folder: Path) -> list[str]:
    refusals = []
    for words in commands(text):
        try:
            accept(words, folder)
        except (CmError, ValueError) as error:
            refusals.append(f"{words}: {error}")
    return refusals


def test_every_command_of_a_page_is_accepted(tmp_path):
    assert faults_of(PAGES, lambda page: refused(page.read_text(encoding="utf-8"), tmp_path)) == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cm run script --tags=run-mlperf,inference,_vllm --no_such=1", "no_such"),
        ("cm run script --tags=get,vlm", "0 recipes"),
        ("cm run script --tags=run-mlperf,inference,_vllm --model=gptj-99,_r4.1", "gptj-99"),
        ("cm run script --tags=run-mlperf,inference,_vllm \\\n      --scenario=Sever", "Sever"),
        ('make run ARGS="--executionmode=valid"', "executionmode"),
    ],
)
def test_a_command_that_the_recipes_do_not_take_is_found(line, words, tmp_path):
    (refusal,) = refused(f"Text:\n\n    {line}\n", tmp_path)
    assert words in refusal


def test_the_readme_and_the_recipes_have_commands():
    assert len(list(commands((ROOT / "README.md").read_text(encoding="utf-8")))) >= 8
