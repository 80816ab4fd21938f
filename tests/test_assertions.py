"""Each test asserts something, by itself or in a function that it calls; another has its reason as a docstring."""

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

from syntax import nodes_of

pytestmark = pytest.mark.xdist_group("source")

FOLDER = Path(__file__).resolve().parent
#: The calls of pytest that fail a test.
FAILING = {"pytest.raises", "pytest.warns", "pytest.fail"}


@dataclass(frozen=True)
class Function:
    """A function of a test file: the names it uses, and what fails or excuses it."""

    name: str
    uses: frozenset[str]
    asserts: bool
    documented: bool

    @property
    def is_test(self) -> bool:
        return self.name.startswith("test_")


def functions(tree: ast.AST) -> list[Function]:
    return [function(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    inside = list(ast.walk(node))
    loaded = (each for each in inside if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load))
    called = (each.func for each in inside if isinstance(each, ast.Call))
    methods = (each for each in called if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name))
    calls = {f"{each.value.id}.{each.attr}" for each in methods}
    return Function(
        name=node.name,
        uses=frozenset(each.id if isinstance(each, ast.Name) else each.attr for each in loaded),
        asserts=any(isinstance(each, ast.Assert) for each in inside) or bool(calls & FAILING),
        documented=ast.get_docstring(node) is not None,
    )


def imported(tree: ast.AST) -> set[str]:
    """Return the names of the modules that a file imports, without their packages."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(name.name for name in node.names)}
        elif isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
    return {name.rpartition(".")[2] for name in names}


def without_assertion(own: list[Function], helpers: list[Function]) -> list[str]:
    """Return the names of the tests in `own` that assert nothing, also through `helpers`, and have no docstring."""
    known, asserting = [function for function in (*own, *helpers) if not function.is_test], set[str]()
    while more := {function.name for function in known if function.asserts or function.uses & asserting} - asserting:
        asserting |= more
    return [
        function.name
        for function in own
        if function.is_test and not (function.asserts or function.uses & asserting or function.documented)
    ]


def test_each_test_asserts_something_or_says_why_not() -> None:
    modules: dict[str, list[Function]] = {}
    functions_of, imported_by = {}, {}
    for path in sorted(FOLDER.rglob("*.py")):
        tree = nodes_of(path)[0]
        functions_of[path], imported_by[path] = functions(tree), imported(tree)
        if not path.name.startswith("test_"):
            modules.setdefault(path.stem, []).extend(functions_of[path])
    offenders = []
    for path, own in functions_of.items():
        helpers = [helper for name in {"conftest", *imported_by[path]} for helper in modules.get(name, [])]
        offenders += [f"{path.relative_to(FOLDER)}: {name}" for name in without_assertion(own, helpers)]
    assert len(functions_of) > 300
    assert offenders == []


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def test_x(): run()", ["test_x"]),
        ("def test_x():\n  'It raises otherwise.'\n  run()", []),
        ("def test_x():\n  with pytest.raises(ValueError): run()", []),
        ("def same(a): assert a\ndef both(a): same(a)\ndef test_x(): both(1)", []),
        ("import beside\ndef test_x(): beside.same(1)", []),
        ("class TestX:\n  def test_x(self): self.run()", ["test_x"]),
    ],
)
def test_a_test_that_asserts_nothing_is_found(code: str, names: list[str]) -> None:
    tree, beside = ast.parse(code), functions(ast.parse("def same(a): assert a"))
    assert without_assertion(functions(tree), beside if "beside" in imported(tree) else []) == names
