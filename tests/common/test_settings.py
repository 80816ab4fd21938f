"""Settings read from a recipe's environment."""

import importlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec
import pytest

import cm4vllm
from cm4vllm.common.errors import UsageError
from cm4vllm.common.settings import Key, Settings, env_keys


class Rack(StrEnum):
    HIGH = "high"
    LOW = "low"


class Oven(Settings, frozen=True, kw_only=True):
    name: Annotated[str, Key("CM_NAME")]
    heat: Annotated[float | None, Key("CM_HEAT")] = None
    lit: Annotated[bool, Key("CM_LIT")] = False
    trays: Annotated[int, Key("CM_TRAYS")] = 1
    fan: Annotated[Literal["off", "full"], Key("CM_FAN")] = "off"
    rack: Annotated[Rack, Key("CM_RACK")] = Rack.LOW


def test_words_become_typed_values():
    oven = Oven.of({"CM_NAME": "a", "CM_HEAT": "9.5", "CM_LIT": "yes"})
    assert oven == Oven(name="a", heat=9.5, lit=True)


def test_absent_and_empty_keys_leave_the_default():
    assert Oven.of({"CM_NAME": "a", "CM_HEAT": ""}) == Oven(name="a")


@pytest.mark.parametrize(
    ("key", "value", "fitting"),
    [
        ("CM_HEAT", "warm", "it must be a number"),
        ("CM_LIT", "maybe", "it must be yes or no"),
        ("CM_TRAYS", "1.5", "it must be a whole number"),
        ("CM_FAN", "half", "it must be one of off, full"),
        ("CM_RACK", "top", "it must be one of high, low"),
    ],
)
def test_a_value_that_does_not_fit_names_its_key_and_what_fits(key, value, fitting):
    with pytest.raises(UsageError, match=f"{key}='{value}'") as error:
        Oven.of({"CM_NAME": "a", key: value})
    assert error.value.cause == fitting


def test_a_missing_value_is_named():
    with pytest.raises(UsageError, match="name"):
        Oven.of({})


def test_the_keys_are_told_in_the_order_of_the_fields():
    assert env_keys(Oven) == {
        "name": "CM_NAME",
        "heat": "CM_HEAT",
        "lit": "CM_LIT",
        "trays": "CM_TRAYS",
        "fan": "CM_FAN",
        "rack": "CM_RACK",
    }


class Exported(Settings, frozen=True, kw_only=True):
    count: Annotated[int | None, Key("CM_COUNT")] = None
    share: Annotated[float, Key("CM_SHARE")] = 0.1
    wanted: Annotated[bool, Key("CM_WANTED")] = False
    name: Annotated[str, Key("CM_NAME")] = ""
    local: int = 3


@pytest.mark.parametrize(
    "settings", [Exported(), Exported(count=7, share=1 / 3, wanted=True, name="two words"), Exported(share=2.0)]
)
def test_what_is_written_is_read_again(settings):
    assert Exported.of(settings.env()) == settings


def test_a_value_that_is_not_given_is_left_out_and_an_empty_text_is_written():
    assert Exported().env() == {"CM_SHARE": "0.1", "CM_WANTED": "no", "CM_NAME": ""}


# --- each environment key has one type and one default, in all settings classes and in the recipe that describes it


PACKAGE = Path(cm4vllm.__path__[0])
READS_SETTINGS = re.compile(r"input_types|, Key\(")


class Use(NamedTuple):
    """A field with a key: where it stands, its type, and its default (NODEFAULT where the class requires it)."""

    place: str
    type: Any
    default: Any


def uses() -> Mapping[str, list[Use]]:
    uses_of: defaultdict[str, list[Use]] = defaultdict(list)
    for cls in settings_classes():
        hints = get_type_hints(cls)
        defaults = {field.name: field.default for field in msgspec.structs.fields(cls)}
        for field, key in env_keys(cls).items():
            uses_of[key].append(Use(f"{cls.__module__}.{cls.__name__}.{field}", hints[field], defaults[field]))
    return uses_of


def settings_classes() -> Iterator[type[msgspec.Struct]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if READS_SETTINGS.search(path.read_text()):
            name = ".".join(("cm4vllm", *path.relative_to(PACKAGE).with_suffix("").parts))
            for member in vars(importlib.import_module(name)).values():
                if isinstance(member, type) and issubclass(member, msgspec.Struct) and member.__module__ == name:
                    yield member


def value_types(hint):
    """Return the types of a field's values, without None: an export may be absent."""
    return str([kind for kind in (get_args(hint) if NoneType in get_args(hint) else [hint]) if kind is not NoneType])


def test_no_key_has_two_definitions():
    uses_of = uses()
    assert len(uses_of) > 100
    not_given = (msgspec.NODEFAULT, None, "")
    apart = {
        key: [(use.place, str(use.type), use.default) for use in of_key]
        for key, of_key in uses_of.items()
        if len({value_types(use.type) for use in of_key}) > 1
        or len({repr(use.default) for use in of_key if use.default not in not_given}) > 1
    }
    assert apart == {}


def test_no_key_is_written_twice():
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert [key for key in uses() if text.count(f'Key("{key}")') > 1] == []
