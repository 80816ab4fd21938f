"""Texts and names of the code, drawn for a reader who has not seen it.

    python docs/tools/drawn_texts.py [SEED]

prints 40 docstrings or messages and 40 names of functions and classes, each with its place. The seed is the hash of the
commit, so that every commit has its own draw and anyone can repeat it. A text or a name that is not understood at first
reading is mended, and so are the others of its kind.
"""

import ast
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from code_counts import CODE, Function, Module, modules_of

_DRAWN = 40
#: A message of fewer words is a name or a label.
_LEAST_WORDS = 4
_MESSAGE_WORDS = frozenset({"cause", "remedy"})
Place = tuple[str, int, str]


def names_of(module: Module) -> Iterator[Place]:
    """Yield path, line and heading of each function and class."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            yield module.path, node.lineno, f"class {node.name}"
        elif isinstance(node, Function) and not node.name.startswith("__"):
            returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            yield module.path, node.lineno, f"{node.name}({ast.unparse(node.args)}){returned}"


def texts_of(module: Module) -> Iterator[Place]:
    """Yield path, line and text of each docstring and of each message of an error."""
    for node in ast.walk(module.tree):
        if isinstance(node, Function | ast.ClassDef | ast.Module) and (text := ast.get_docstring(node)):
            yield module.path, getattr(node, "lineno", 1), text
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            given = [*node.exc.args, *(word.value for word in node.exc.keywords if word.arg in _MESSAGE_WORDS)]
            for text in map(message, given):
                if len(text.split()) >= _LEAST_WORDS:
                    yield module.path, node.lineno, text


def message(node: ast.expr) -> str:
    """Return a literal text with its expressions in braces, empty for any other expression."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(message(part) or f"{{{ast.unparse(part.value)}}}" for part in parts if hasattr(part, "value"))


def main() -> None:
    """Print the seed and what is drawn by it."""
    root = Path(__file__).resolve().parents[2]
    head = ["git", "-C", str(root), "rev-parse", "HEAD"]
    seed = sys.argv[1] if len(sys.argv) > 1 else subprocess.check_output(head, text=True).strip()
    draw = random.Random(seed)  # noqa: S311 - a sample, no secret
    modules = modules_of(root, CODE)
    print(f"seed {seed}")
    for title, read in (("texts", texts_of), ("names", names_of)):
        places = sorted(place for module in modules for place in read(module))
        print(f"\n{title}: {_DRAWN} of {len(places):,}\n")
        for path, line, text in sorted(draw.sample(places, _DRAWN)):
            print(f"{path}:{line}: {text}\n")


if __name__ == "__main__":
    main()
