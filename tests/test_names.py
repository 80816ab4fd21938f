"""The names and docstrings of all modules, and that none uses what the least Python lacks.

A variable is named after the thing that it holds, and a docstring begins with that thing or with a verb.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from syntax import nodes_of

pytestmark = pytest.mark.xdist_group("source")

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "script", "automation", "benchmarks", "docs/tools", "tests")
#: Names that hold anything: a reader has to look for the line that fills them.
VAGUE = {"one", "found", "what", "it", "those"}
#: Beginnings of docstrings: those of questions, and those that leave open whether a value is returned or printed.
UNCLEAR = re.compile(r"(What|Whether|How|Which|Why|When|Where|Who|Says?|Tells?|Gives?|True|False)\b")
#: What bug fix releases after the least Python added, which no type checker knows: words of a call, and attributes.
LATER_WORDS = {"extract": "filter", "extractall": "filter", "unpack_archive": "filter", "parseaddr": "strict"}
LATER_NAMES = {"data_filter", "tar_filter", "fully_trusted_filter", "SetReparseDeferralEnabled"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: The nodes that the functions below look at: most others are constants, contexts and names that are read.
SEEN = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Module,
    ast.ClassDef,
    ast.arg,
    ast.ExceptHandler,
    ast.MatchAs,
    ast.Attribute,
    ast.Call,
)


def vague_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the variables, parameters and functions of a module that have a name of VAGUE, each with its line."""
    fields = {id(node.target) for of in nodes if isinstance(of, ast.ClassDef) for node in annotated(of)}
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if id(node) not in fields:
                pass
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name):
                pass
            case _:
                continue
        if name in VAGUE:
            yield f"{getattr(node, 'lineno', 0)}: {name}"


def annotated(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    """Yield the fields of a record; their names are those of the file that it is written to."""
    yield from (part for part in node.body if isinstance(part, ast.AnnAssign))


def unclear(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the first lines of the docstrings that begin as a question does, or with "Say", "Tell", "Give", "True"."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            text = ast.get_docstring(node) or ""
            if UNCLEAR.match(text):
                yield text.splitlines()[0]


def later(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the calls and attributes that the least Python lacks."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in LATER_NAMES:
            yield node.attr
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", "")
            if LATER_WORDS.get(name) in {word.arg or "" for word in node.keywords}:
                yield name


def test_names_say_what_they_hold_docstrings_begin_with_a_noun_or_a_verb_and_the_least_python_has_all():
    offenders = []
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    for path in sorted([ROOT / "environment.py", *files]):
        nodes = [
            node
            for node in nodes_of(path)
            if (isinstance(node.ctx, ast.Store) if isinstance(node, ast.Name) else isinstance(node, SEEN))
        ]
        faults = (*vague_names(nodes), *unclear(nodes), *later(nodes))
        offenders += [f"{path.relative_to(ROOT)}:{fault}" for fault in faults]
    assert offenders == []


SHORT = '''"""What it is."""
for one in runs:
    [what for what in one]
def found(it): ...
class Record:
    what: str
def one_of(run): ...
def whole(run) -> bool:
    "Say whether all of it came."
def runs():
    """Give each run."""
def ended() -> bool:
    """True if it has ended."""
def told():
    """Return True if it is whole."""
'''


def test_such_names_and_docstrings_are_found():
    nodes = list(ast.walk(ast.parse(SHORT)))
    assert sorted(vague_names(nodes)) == ["2: one", "3: what", "4: found", "4: it"]
    assert list(unclear(nodes)) == [
        "What it is.",
        "Say whether all of it came.",
        "Give each run.",
        "True if it has ended.",
    ]


def test_what_the_least_python_lacks_is_found():
    lacking = "tar.extractall(a, filter='data')\nx = tarfile.data_filter\n"
    assert sorted(later(list(ast.walk(ast.parse(lacking))))) == ["data_filter", "extractall"]
    here = "z.extractall(a)\nextract(a, b, filter=1)\nx.filter(y, filter=1)\n"
    assert list(later(list(ast.walk(ast.parse(here))))) == []
