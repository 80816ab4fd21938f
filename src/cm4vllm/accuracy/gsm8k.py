"""GSM8K: whether the number that an answer gives is the expected one.

The numbers are those of mlcommons/inference language/mixtral-8x7b/evaluate-accuracy.py, its oddities included.
"""

import re

#: A number with a sign, commas between digits and decimals; also one of decimals alone, or with commas before it.
_NUMBER = re.compile(r"-?[\d,]*\.?\d+")
_DELIMITER, _NEXT_QUESTION = "The answer is", "\nQ:"


def is_solved(prediction: str, reference: str) -> bool:
    """Return True if a prediction gives the number of `reference`; what follows a next question is left out."""
    given = _number(number_in(prediction.split(_NEXT_QUESTION)[0]).replace(",", ""))
    return given is not None and given == _number(reference)


def number_in(text: str) -> str:
    """Return the first number after the last "The answer is", else the last one of the text; empty without any."""
    if _DELIMITER in text and (match := _NUMBER.search(text.split(_DELIMITER)[-1])):
        return match[0]
    numbers = _NUMBER.findall(text)
    return str(numbers[-1]) if numbers else ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
