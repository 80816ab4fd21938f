"""Settings read from a recipe's environment."""

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import Record
from cm4vllm.common.settings import read_settings


class Oven(Record, frozen=True, kw_only=True):
    name: str
    heat: float | None = None
    lit: bool = False


KEYS = {"name": "CM_NAME", "heat": "CM_HEAT", "lit": "CM_LIT"}


def test_words_become_typed_values():
    oven = read_settings(Oven, {"CM_NAME": "a", "CM_HEAT": "9.5", "CM_LIT": "yes"}, KEYS)
    assert oven == Oven(name="a", heat=9.5, lit=True)


def test_absent_and_empty_keys_leave_the_default():
    assert read_settings(Oven, {"CM_NAME": "a", "CM_HEAT": ""}, KEYS) == Oven(name="a")


def test_a_value_that_does_not_fit_names_its_key():
    with pytest.raises(UsageError, match="CM_HEAT='warm'"):
        read_settings(Oven, {"CM_NAME": "a", "CM_HEAT": "warm"}, KEYS)


def test_a_missing_value_is_named():
    with pytest.raises(UsageError, match="name"):
        read_settings(Oven, {}, KEYS)
