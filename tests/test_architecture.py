"""The order of the packages, and of the parts of some: each imports only what comes before it, without circles.

Imports inside functions, and for type checkers alone, count as any other.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from syntax import nodes_of

pytestmark = pytest.mark.xdist_group("source")

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "cm4vllm"
PACKAGES = tuple(
    (
        "common engine rules records hardware assets serving loadgen power accuracy compliance "
        "results submission report endpoints campaign doctor"
    ).split()
)
#: The parts of packages, in their order; what is not named, as the front of the engine, comes after them all.
PARTS = {
    "engine": ("format", "run", "cache", "plan", "tools"),
    "loadgen": ("client", "user_conf", "given_conf", "settings", "identity", "wheel", "limits", "process"),
}
#: The packages that measure and write records, and those that read records and judge them.
MEASURING = {"hardware", "assets", "serving", "loadgen", "power", "accuracy", "compliance"}
READING = {"results", "submission", "report"}
#: What the reading side imports of the measuring side, each with its reason.
CROSSING = {
    ("submission.system_records", "hardware.machine_facts"): "a tree alone is described on the machine it is made on",
    ("submission.system_records", "hardware.system_description"): "the description is made with the tree",
    ("submission.system_records", "hardware.system_file"): "the submitter's file of the system is read with the tree",
    ("submission.system_records", "hardware.gpus.gpu"): "the driver names the GPUs that a server uses and sees",
    ("submission.campaign_software", "hardware.machine_facts"): "the facts beside a result have the keys of detection",
    ("submission.campaign_software", "hardware.host"): "the facts beside a result have the keys of detection",
    ("submission.capsule.replay", "hardware.machine_facts"): "a replay is compared with the machine it runs on",
    ("submission.capsule.replay", "hardware.system_description"): "a replay is compared with its own description",
    (
        "submission.capsule.replay",
        "serving.options.searchable_options",
    ): "a replay of a search names the options searched",
}
#: Packages that know nothing of each other.
STRANGERS = {("rules", "engine")}
MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SRC.rglob("*.py"))
}


@dataclass(frozen=True)
class Module:
    """The modules of the package that a module imports; the lines of named rounds."""

    imported: frozenset[str]
    rounds: tuple[int, ...]


@cache
def module(name: str) -> Module:
    nodes = nodes_of(MODULES[name])
    return Module(imported=frozenset(imports_of(nodes, name)), rounds=tuple(named_rounds(nodes)))


def imports_of(nodes: Iterable[ast.AST], name: str) -> Iterator[str]:
    """Yield the modules of the package that a module imports."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "cm4vllm":
            base = node.module.removeprefix("cm4vllm").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                module = inner if inner in MODULES else base
                if module and module != name:
                    yield module
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("cm4vllm.")
                for alias in node.names
                if alias.name.startswith("cm4vllm.") and alias.name.removeprefix("cm4vllm.") != name
            )


def place(name: str) -> tuple[int, int]:
    """Return where a module stands in the order: its package, and its part of the package."""
    package, _, rest = name.partition(".")
    parts, part = PARTS.get(package, ()), rest.partition(".")[0]
    return PACKAGES.index(package), parts.index(part) if part in parts else len(parts)


def upward(name: str, others: frozenset[str]) -> list[str]:
    """Return those of a module's imports that come after it, or that it may know nothing of."""
    package = name.partition(".")[0]
    return sorted(
        other for other in others if place(other) > place(name) or (package, other.partition(".")[0]) in STRANGERS
    )


def circle(edges: dict[str, frozenset[str]]) -> list[str]:
    """Return modules of which each imports the next one, and the last one the first; none where there is no circle."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_a_module_imports_only_what_comes_before_it():
    imports = {name: upward(name, module(name).imported) for name in MODULES if "." in name}
    assert {name: others for name, others in imports.items() if others} == {}


def test_what_judges_does_not_import_what_measures():
    """Imports for type checkers count: `check` and `compare` work where nothing can be served."""
    crossing = {
        (name, other)
        for name in MODULES
        if name.partition(".")[0] in READING
        for other in module(name).imported
        if other.partition(".")[0] in MEASURING
    }
    assert crossing == CROSSING.keys()


def test_commands_that_judge_start_without_a_package_that_measures():
    names = []
    for recipe in ("check-mlperf-results", "compare-mlperf-results", "explore-mlperf-results", "verify-mlperf"):
        nodes = nodes_of(ROOT / "script" / recipe / "customize.py")
        imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        own = sorted(name for name in imported if name.startswith("cm4vllm."))
        assert own, recipe
        names += own
    program = f"import sys, importlib\nfor name in {names}: importlib.import_module(name)\nprint(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-P", "-c", program], text=True).split()
    assert {name.split(".")[1] for name in loaded if name.startswith("cm4vllm.")} & MEASURING == set()


def test_no_modules_import_each_other_in_a_circle():
    assert circle({name: module(name).imported for name in MODULES if name}) == []


def test_the_checks_find_what_they_look_for():
    assert upward("records.logs.run_logs", frozenset({"report.table", "common.errors"})) == ["report.table"]
    assert upward("engine.format.meta", frozenset({"engine.run.request", "common.errors"})) == ["engine.run.request"]
    assert upward("loadgen.client.wire", frozenset({"loadgen.process.main"})) == ["loadgen.process.main"]
    assert upward("rules.terms", frozenset({"engine.format.meta"})) == ["engine.format.meta"]
    assert set(circle({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b"), "d": frozenset()})) == {"b", "c"}
    lazy = "def f():\n    from cm4vllm.common.errors import CmError\n    from cm4vllm.common import files\n"
    assert set(imports_of(ast.walk(ast.parse(lazy)), "engine.x")) == {"common.errors", "common.files"}


#: A module of rules/ by its own name, or the tables behind it; what others may ask is what the package itself offers.
INSIDE_THE_RULES = re.compile(
    r"cm4vllm\.rules\.\w|cm4vllm\.rules import (?:tables|entries|vocabulary)\b|rules/data|files\(.cm4vllm\.rules"
)


def test_files_of_others_are_read_as_plain_files():
    """A tree or a results folder of somebody else may have a pipe or a device in the place of any file."""
    places = [
        f"{path.relative_to(SRC)}:{number}"
        for package in ("records", "compliance", "results", "submission", "report")
        for path in sorted((SRC / package).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\.read_(text|bytes)\(", line) and "files(" not in line  # of the package itself
    ]
    assert places == [], "read them with common.files.bytes_of and text_of"


def test_other_packages_ask_the_rules_and_not_their_tables():
    others = [path for name, path in MODULES.items() if name.partition(".")[0] != "rules"]
    assert [str(path) for path in others if INSIDE_THE_RULES.search(path.read_text())] == []
    for line in (
        "from cm4vllm.rules.tables import BENCHMARKS",
        "from cm4vllm.rules import tables",
        'files("cm4vllm.rules")',
    ):
        assert INSIDE_THE_RULES.search(line)
    assert not INSIDE_THE_RULES.search("from cm4vllm.rules import Mode, terms")


ROUND = re.compile(r"v\d(\.\d)?")


def named_rounds(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the lines in which a value is compared with a round's name, or looked up by one."""
    for node in nodes:
        parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        parts += [node.slice] if isinstance(node, ast.Subscript) else []
        parts += [
            element for part in parts if isinstance(part, (ast.Tuple, ast.List, ast.Set)) for element in part.elts
        ]
        if any(isinstance(piece, ast.Constant) and ROUND.fullmatch(str(piece.value)) for piece in parts):
            yield node.lineno


def test_no_module_compares_the_name_of_a_round():
    """Rounds differ in fields of the rules' data, each with its source."""
    assert {name: module(name).rounds for name in MODULES if module(name).rounds} == {}
    for line in ('round_ >= "v6"', 'round_.name in ("v4.1", "v5.0")', 'LAYOUTS["v6.0"]'):
        assert list(named_rounds(ast.walk(ast.parse(line)))) == [1]


#: Modules that one folder holds at most: more are not found by their names.
MOST_MODULES = 20


def dates_of_the_clock(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the calls of a module that ask the clock for a date."""
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr="now" | "utcnow" | "today"):
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Attribute(value=ast.Name(id="time"), attr="gmtime" | "localtime" | "ctime" | "strftime"):
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_the_clock_is_asked_for_a_date_in_one_module():
    asked = {name: list(dates_of_the_clock(nodes_of(path))) for name, path in MODULES.items()}
    assert [name for name, lines in asked.items() if lines] == ["common.clock"]
    written = "from datetime import date\nimport time\nday = date.today()\ntext = time.strftime('%Y')\n"
    assert list(dates_of_the_clock(ast.walk(ast.parse(written)))) == ["3: date.today", "4: time.strftime"]


def test_a_folder_holds_few_modules():
    folders = Counter(path.parent.relative_to(SRC) for path in SRC.rglob("*.py"))
    assert {str(folder): count for folder, count in folders.items() if count > MOST_MODULES} == {}
