"""The options that a command line gives to `vllm serve`, read as vLLM 0.32.0 reads them (utils/argparse_utils.py).

vLLM takes `--a-b` and `--a_b`, `--a=1` and `--a 1`, short names, the beginning of a name that fits no other, `--no-a`,
and parts of a JSON value (`--a.part 1`, `--a.list+ x,y`). Of an option that is given twice the last value counts.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cm4vllm.records.vllm.options import Option, Options, neutral_name, option_named, split_options, stored_options

#: The value of an option: True or False for one that takes no value, a list for one that takes several.
OptionValue = bool | int | float | str | list[Any] | dict[str, Any]

_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_MULTIPLE = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,15})?)(?P<suffix>[kmgt])", re.ASCII | re.IGNORECASE)


def given_options(words: Sequence[str], options: Options | None = None) -> dict[str, OptionValue]:
    """Return the options of a command line by the names that they have in records, without dashes.

    The words before the options, such as python, vllm, serve and the model, are left out. `options` are those of the
    installed vLLM, else those of 0.32.0. An option that is not among them, as of another release, has the values that
    follow it.
    """
    known = stored_options() if options is None else options
    given: dict[str, OptionValue] = {}
    parts: dict[str, dict[str, Any]] = {}
    for word in split_options(_without_program(words))[1]:
        option, texts = option_named(word.name, known), word.values
        if word.keys and texts:
            value = texts[0].split(",") if word.adds else _part(texts[0])
            _merge(parts.setdefault(word.name, {}), word.keys, value)
        elif option is None:
            full = word.name.lstrip("-")
            off = not texts and full.startswith("no-")
            given[neutral_name(full.removeprefix("no-") if off else full)] = not off if not texts else _value(texts)
        else:
            given[option.full_name] = not option.off if not option.takes_value else _value(texts, option)
    # vLLM appends the parts to the command line as one JSON value.
    for name, value in parts.items():
        option = option_named(name, known)
        given[option.full_name if option else neutral_name(name.lstrip("-"))] = value
    return given


def whole_number(options: Mapping[str, OptionValue], name: str) -> int | None:
    """Return the value of an option as a whole number; None where the option or such a value is missing."""
    value = options.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def value_text(value: OptionValue) -> str:
    """Return a value as a command line has it; yes or no for an option without a value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _without_program(words: Sequence[str]) -> Sequence[str]:
    """Return the words after the program (`python -m MODULE`, `vllm serve`); all words if no program is named."""
    begin = 0
    for at, word in enumerate(words):
        if word.startswith("--"):
            break
        if word == "serve" or words[at - 1 : at] == ["-m"]:
            begin = at + 1
    return words[begin:]


def _value(texts: Sequence[str], option: Option | None = None) -> OptionValue:
    """Return the typed value of an option from its words: a list where it takes several, True where it has none."""
    multiples = option is not None and option.multiples
    values = [typed_value(text, multiples=multiples) for text in texts]
    if option.several if option is not None else len(values) > 1:
        return values
    return values[0] if values else True


def typed_value(text: str, *, multiples: bool = False) -> OptionValue:
    """Return a value as the number, JSON object or list that it is written as, else as the text."""
    if text[:1] in ("{", "["):
        return _from_json(text)
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    if multiples and (multiple := _MULTIPLE.fullmatch(text)):
        suffix = multiple["suffix"]
        power = "kmgt".index(suffix.lower()) + 1
        return int(float(multiple["number"]) * (1000 if suffix.islower() else 1024) ** power)
    return text


def _part(text: str) -> OptionValue:
    """Return a part of a JSON value: JSON where it is, as true or null, else as a value of its own."""
    value = _from_json(text)
    return typed_value(text, multiples=True) if value is text else value


def _from_json(text: str) -> OptionValue:
    """Return the value of a JSON text; the text itself where it is no JSON, or no value that a record can hold."""
    try:
        value: OptionValue = msgspec.json.decode(text)
        msgspec.json.encode(value)
    except (ValueError, RecursionError, OverflowError):
        return text
    return value


def _merge(into: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Put a part of a JSON value to the parts before it: lists grow, other values are replaced."""
    *outer, last = keys
    for key in outer:
        if not isinstance(into.get(key), dict):
            into[key] = {}
        into = into[key]
    if isinstance(value, list) and isinstance(into.get(last), list):
        into[last] += value
    elif isinstance(value, dict) and isinstance(into.get(last), dict):
        for key, part in value.items():
            _merge(into[last], [key], part)
    else:
        into[last] = value
