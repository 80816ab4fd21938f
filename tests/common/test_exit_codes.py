"""docs/exit-codes.md lists every kind of the error tree and every signal that stops a run."""

import signal
from pathlib import Path

from cm4vllm.common import errors
from cm4vllm.engine.run import session
from exit_codes_page import exit_codes, exit_codes_page

PAGE = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def test_the_page_is_the_one_that_the_code_writes():
    written = PAGE.read_text(encoding="utf-8")
    assert written == exit_codes_page(), "python docs/tools/exit_codes_page.py > docs/exit-codes.md"


def test_every_kind_and_every_signal_has_its_line():
    listed = {code for code, _, _ in exit_codes()}
    kinds = {
        getattr(errors, name).exit_code
        for name in dir(errors)
        if isinstance(getattr(errors, name), type) and issubclass(getattr(errors, name), errors.CmError)
    }
    assert listed == {0, *kinds, *(128 + number for number in (*session._SIGNALS, signal.SIGINT))}
    assert 143 in listed
