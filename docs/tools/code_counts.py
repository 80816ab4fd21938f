"""Counts of a checkout's code: statements, lines, imports that cross the sides, functions that read CM's environment.

    python docs/tools/code_counts.py [CHECKOUT] [--environment]

prints one table, by which a checkout before a change is compared with the one after it. A statement is an `ast.stmt`
that is no docstring; each is counted once, also inside others. With --environment the functions of src that read CM's
environment are listed instead.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: The folders whose statements count as code.
CODE = ("src", "script", "automation", "benchmarks", "docs/tools")
MEASURING = ("hardware", "assets", "serving", "loadgen", "power", "accuracy", "compliance")
READING = ("results", "submission", "report")
#: The most modules of a folder.
MOST = 20
_KEY = re.compile(r"CM_[A-Z0-9_]+")
_GENERATED = re.compile(r"^(Generated|Written from the code)\b", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file of Python: its path from the checkout, its text, its tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        parts = Path(self.path).parts
        return "/".join(parts[:3]) if parts[0] == "src" and len(parts) > 3 else parts[0]


def modules_of(root: Path, folders: tuple[str, ...] = CODE) -> list[Module]:
    """Return the modules below these folders of a checkout."""
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    texts = ((path, path.read_text(encoding="utf-8")) for path in paths)
    return [Module(path.relative_to(root).as_posix(), text, ast.parse(text)) for path, text in texts]


def statements(tree: ast.AST) -> int:
    """Return the number of statements of a tree that are no docstrings."""
    return sum(isinstance(node, ast.stmt) and not is_text(node) for node in ast.walk(tree))


def is_text(node: ast.AST) -> bool:
    """Return True if a statement is a text alone, as docstrings are."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def functions_of(module: Module) -> Iterator[Function]:
    """Yield all functions of a module."""
    yield from (node for node in ast.walk(module.tree) if isinstance(node, Function))


def environment_readers(modules: list[Module]) -> list[str]:
    """Return the functions that read CM's environment, each as `path name`; also by a function that they call."""
    constants = frozenset(name for module in modules for name in key_constants(module))
    names: frozenset[str] = frozenset()
    while True:
        readers = [
            (module.path, function.name)
            for module in modules
            for function in functions_of(module)
            if reads_environment(function, key_constants(module) | constants & imported(module), names)
        ]
        if (now := frozenset(name for _, name in readers)) == names:
            return [f"{path} {name}" for path, name in readers]
        names = now


def reads_environment(function: Function, keys: frozenset[str], readers: frozenset[str] = frozenset()) -> bool:
    """Return True if a function reads a `CM_...` key, or has such keys read in a mapping that it takes.

    `keys` are the names of constants that hold such a key, `readers` those of functions known to read them.
    """
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    taken = {argument.arg for argument in parameters if is_mapping(argument)}
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and is_key(node.slice, keys):
            return True
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            passed = any(isinstance(name, ast.Name) and name.id in taken for value in given for name in whole(value))
            reads = called == "get" and node.args and is_key(node.args[0], keys)
            if reads or (passed and (called == "of" or called in readers)):
                return True
    return False


def imported(module: Module) -> frozenset[str]:
    """Return the names that a module imports from others."""
    imports = (node for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom))
    return frozenset(alias.asname or alias.name for node in imports for alias in node.names)


def whole(value: ast.expr) -> list[ast.expr]:
    """Return a value, and where it is a dictionary those that are put into it as a whole: `{**env, key: value}`."""
    parts = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
    return [value, *(part for key, part in parts if key is None)]


def is_mapping(argument: ast.arg) -> bool:
    """Return True for a parameter that is a mapping of texts, under whatever name."""
    kind = ast.unparse(argument.annotation) if argument.annotation else ""
    return kind.startswith(("Mapping[str, ", "dict[str, "))


def is_key(node: ast.AST, keys: frozenset[str] = frozenset()) -> bool:
    """Return True for a key of CM's environment, written out or by a constant's name."""
    written = isinstance(node, ast.Constant) and isinstance(node.value, str) and _KEY.fullmatch(node.value)
    return bool(written) or (isinstance(node, ast.Name) and node.id in keys)


def key_constants(module: Module) -> frozenset[str]:
    """Return the names of a module's constants that hold a key of CM's environment, also of several in a line."""
    assigned = (node for node in module.tree.body if isinstance(node, ast.Assign))
    pairs = ((getattr(part, "elts", [part]) for part in (node.targets[0], node.value)) for node in assigned)
    return frozenset(ast.unparse(name) for pair in pairs for name, value in zip(*pair, strict=False) if is_key(value))


def crossing_imports(modules: list[Module]) -> set[tuple[str, str]]:
    """Return the pairs of a module that judges and one that measures which it imports."""
    names = {dotted(module) for module in modules if module.path.startswith("src/cm4vllm/")}
    pairs = set()
    for module in (module for module in modules if dotted(module).partition(".")[0] in READING):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cm4vllm."):
                base = str(node.module).removeprefix("cm4vllm.")
                others = (f"{base}.{alias.name}" if f"{base}.{alias.name}" in names else base for alias in node.names)
                pairs |= {(dotted(module), other) for other in others if other.partition(".")[0] in MEASURING}
    return pairs


def dotted(module: Module) -> str:
    """Return a module's name below cm4vllm."""
    return module.path.removeprefix("src/cm4vllm/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def lines_below(root: Path, folder: str) -> int:
    """Return the number of lines of the Python files below a folder."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / folder).rglob("*.py"))


def documented(functions: list[Function]) -> float:
    """Return the part of these functions that has a docstring."""
    return sum(ast.get_docstring(function) is not None for function in functions) / max(1, len(functions))


def words_of_docs(root: Path) -> int:
    """Return the number of words of the pages of docs/ that are written by hand."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((root / "docs").rglob("*.md"))]
    return sum(len(text.split()) for text in texts if not _GENERATED.search(text[:400]))


def counts(root: Path) -> dict[str, str]:
    """Return the figures of a checkout, by their names."""
    modules = modules_of(root)
    source = [module for module in modules if module.path.startswith("src/")]
    outside = [module for module in source if not module.path.startswith("src/cm4vllm/engine/")]
    hooks = [module for module in modules if module.path.startswith("script/")]
    folders = Counter(str(Path(module.path).parent) for module in source)
    public = [
        function
        for module in source
        for function in functions_of(module)
        if not function.name.startswith("_") or (function.end_lineno or 0) - function.lineno >= MOST // 4
    ]
    rows = Counter[str]()
    for module in modules:
        rows[module.package] += statements(module.tree)
    return {
        "statements": f"{sum(rows.values()):,}",
        **{f"  of {package}": f"{count:,}" for package, count in rows.most_common()},
        "lines of src": f"{lines_below(root, 'src'):,}",
        "lines of tests": f"{lines_below(root, 'tests'):,}",
        "imports from the reading to the measuring side": str(len(crossing_imports(modules))),
        "functions of src outside the engine that read CM's environment": str(len(environment_readers(outside))),
        "functions of hooks that read a key of it by its name": str(len(environment_readers(hooks))),
        "lines of the longest customize.py": str(max((len(hook.text.splitlines()) for hook in hooks), default=0)),
        f"folders of src with more than {MOST} modules": ", ".join(
            f"{folder.removeprefix('src/cm4vllm/')} {count}" for folder, count in folders.most_common() if count > MOST
        )
        or "none",
        "public or longer functions of src with a docstring": f"{documented(public):.1%}",
        "words of docs/ written by hand": f"{words_of_docs(root):,}",
    }


def main(arguments: list[str]) -> int:
    """Print the table."""
    folders = [argument for argument in arguments if argument != "--environment"]
    root = Path(folders[0]) if folders else Path(__file__).resolve().parents[2]
    if "--environment" in arguments:
        outside = [module for module in modules_of(root, ("src",)) if "/engine/" not in module.path]
        print(*environment_readers(outside), sep="\n")
        return 0
    for name, figure in counts(root).items():
        print(f"{name}: {figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
