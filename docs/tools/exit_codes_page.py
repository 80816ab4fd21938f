"""docs/exit-codes.md: `python docs/tools/exit_codes_page.py > docs/exit-codes.md`."""

from cm4vllm.common import errors

_PAGE = """\
# Exit codes

Generated from `src/cm4vllm/common/errors.py`: `python docs/tools/exit_codes_page.py > docs/exit-codes.md`.

Every command ends with one of these codes. The message on standard error says what failed, its cause and a remedy;
with `--out=json` the code is the field `return` and the message the field `error`.

| code | kind | meaning |
|---|---|---|
"""
_SIGNALS = """
A signal that stops a run gives 128 + its number. Processes that the run started are ended, and finished steps are kept.
A hook of a recipe that returns `{'return': n, 'error': text}` gives n.
"""


def exit_codes() -> list[tuple[int, str, str]]:
    """Return code, kind and meaning of each way in which a command ends, by code."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CmError)]
    rows = [(kind.exit_code, f"`{kind.__name__}`", _meaning(kind)) for kind in kinds]
    signals = [
        (128 + number, f"SIG{name}", f"the run was stopped by SIG{name}") for number, name in ((1, "HUP"), (15, "TERM"))
    ]
    return sorted([(0, "", "done"), *rows, *signals])


def _meaning(kind: type[errors.CmError]) -> str:
    """Return the first sentence of a kind's docstring as the cell of a table."""
    sentence = str(kind.__doc__).splitlines()[0].removesuffix(".")
    return sentence[:1].lower() + sentence[1:]


def exit_codes_page() -> str:
    """Return docs/exit-codes.md."""
    return _PAGE + "".join(f"| {code} | {kind} | {text} |\n" for code, kind, text in exit_codes()) + _SIGNALS


if __name__ == "__main__":
    print(exit_codes_page(), end="")
