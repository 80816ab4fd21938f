"""Settings read from a recipe's environment."""

from typing import Annotated

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import Record
from cm4vllm.common.settings import Key, env_keys, read_settings


class Oven(Record, frozen=True, kw_only=True):
    name: Annotated[str, Key("CM_NAME")]
    heat: Annotated[float | None, Key("CM_HEAT")] = None
    lit: Annotated[bool, Key("CM_LIT")] = False


def test_words_become_typed_values():
    oven = read_settings(Oven, {"CM_NAME": "a", "CM_HEAT": "9.5", "CM_LIT": "yes"})
    assert oven == Oven(name="a", heat=9.5, lit=True)


def test_absent_and_empty_keys_leave_the_default():
    assert read_settings(Oven, {"CM_NAME": "a", "CM_HEAT": ""}) == Oven(name="a")


def test_a_value_that_does_not_fit_names_its_key():
    with pytest.raises(UsageError, match="CM_HEAT='warm'"):
        read_settings(Oven, {"CM_NAME": "a", "CM_HEAT": "warm"})


def test_a_missing_value_is_named():
    with pytest.raises(UsageError, match="name"):
        read_settings(Oven, {})


def test_the_keys_are_told_in_the_order_of_the_fields():
    assert env_keys(Oven) == {"name": "CM_NAME", "heat": "CM_HEAT", "lit": "CM_LIT"}
