"""Answers that are right or wrong by what stands in them: matches, codes, numbers and letters of a choice.

The numbers are those of the reference scripts of mlcommons/inference, their oddities included: `qa_em` and `niah_em` of
language/llama3.1-405b/evaluate-accuracy.py, in percent; GSM8K of language/mixtral-8x7b/evaluate-accuracy.py; letters
and whole numbers of language/deepseek-r1/eval_accuracy.py and language/gpt-oss-120b/eval_accuracy.py.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import TypeVar

T = TypeVar("T")

_CODE = re.compile(r"\w{8}-\w{4}-\w{4}-\w{4}-\w{12}")
_SPACES = re.compile(r"\s+")


def percent_answered(prediction: str, reference: str) -> float:
    """Return 100 if the prediction is one of the answers in `reference` (separated by `|`), else 0.

    Only the text after the last "Answer: " counts, or the whole text without one; case and spaces do not. A prediction
    that is itself a part of the reference, the empty one too, counts as right.
    """
    given = prediction.rpartition("Answer: ")[2]
    if given in reference:
        return 100.0
    plain = _without_marks(given)
    return 100.0 if any(_without_marks(answer) in plain for answer in reference.split("|")) else 0.0


def percent_retrieved(prediction: str, reference: str) -> float:
    """Return how much of the codes in `reference` a prediction repeats, in percent, rounded to two digits; 0 without.

    The n-th code of the prediction is compared with the n-th of the reference, by the characters that both have, in
    whatever order; codes that the reference lacks count as wrong.
    """
    retrieved_lines, wanted = _CODE.findall(prediction), _CODE.findall(reference)
    if not retrieved_lines:
        return 0.0
    shares = [
        sum(1.0 for character in theirs if character.lower() in ours.lower()) / len(theirs)
        for ours, theirs in zip(retrieved_lines, wanted, strict=False)
    ]
    return round(sum(shares) / len(retrieved_lines) * 100, 2)


def _without_marks(text: str) -> str:
    return _SPACES.sub("", text).lower()


#: A number with a sign, commas between digits and decimals; also one of decimals alone, or with commas before it.
_NUMBER = re.compile(r"-?[\d,]*\.?\d+")
_DELIMITER, _NEXT_QUESTION = "The answer is", "\nQ:"


def is_solved(prediction: str, reference: str) -> bool:
    """Return True if a prediction gives the number of `reference`; what follows a next question is left out."""
    given = _value(float, number_in(prediction.split(_NEXT_QUESTION)[0]).replace(",", ""))
    return given is not None and given == _value(float, reference)


def number_in(text: str) -> str:
    """Return the first number after the last "The answer is", else the last one of the text; empty without any."""
    if _DELIMITER in text and (match := _NUMBER.search(text.split(_DELIMITER)[-1])):
        return match[0]
    numbers = _NUMBER.findall(text)
    return str(numbers[-1]) if numbers else ""


_BOXED = re.compile(r"\\boxed{\s*(\d+)\s*}")
_ANNOUNCED_NUMBER = re.compile(r"Answer:\s*(\d+)(?!\.)\b", re.IGNORECASE)
#: The part of an answer in the harmony format that is for the user, also where its name was damaged.
_FINAL = re.compile(r"<\|channel\|>final[^<]*<\|message\|>(.*?)(?:<\|return\|>|$)", re.DOTALL)
_BOLD = re.compile(r"\*\*([^*]+)\*\*")


def is_choice(answer: str | None, reference: str, letters: str) -> bool:
    """Return True if the letter found is the expected one."""
    return answer is not None and answer in letters and answer == reference.upper()


def is_integer(answer: int | None, reference: str) -> bool:
    """Return True if the number found is the expected one."""
    return answer is not None and answer == _value(int, reference)


def chosen_letter(text: str, letters: str) -> str | None:
    """Return the letter that a text announces last as its answer; of ten letters, else the last that stands alone."""
    text = _without_list(text.strip())
    return _last_match(_announcement(letters[-1]), text) or _letter_alone(text, letters)


def chosen_at_the_end(text: str, letters: str) -> str | None:
    """Return the letter that the final part of a text begins with or announces, else what the text announces."""
    text = text.strip()
    final = _without_list(_BOLD.sub(r"\1", final_part(text)))
    last = letters[-1]
    for pattern in (rf"^[^a-zA-Z]*([A-{last}])(?:[^a-zA-Z]|$)", rf"\bAnswer\s*[:.]?\s*([A-{last}])\b"):
        if match := re.search(pattern, final.strip() if pattern[0] == "^" else final, re.IGNORECASE):
            return match[1].upper()
    return _last_match(_announcement(last), _unescape(text)) or _letter_alone(final, letters)


def final_part(text: str) -> str:
    """Return the final part of an answer in the harmony format, the whole text of another."""
    match = _FINAL.search(text)
    return match[1].strip() if match else text


def integer(text: str) -> int | None:
    """Return the last number in a box, else the last that is announced as the answer; None unless it is 0 to 999."""
    numbers = _BOXED.findall(text) or _ANNOUNCED_NUMBER.findall(text)
    value = _value(int, numbers[-1]) if numbers else None
    return value if value is not None and value <= 999 else None


@cache
def _announcement(last: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:FINAL\s*)?ANSWER\b\s*[:=]?\s*\(?\s*([A-{last}])\s*\)?(?:\s*$|[^A-Za-z])", re.IGNORECASE)


def _letter_alone(text: str, letters: str) -> str | None:
    return _last_match(re.compile(rf"\b([A-{letters[-1]}])\b", re.IGNORECASE), text) if len(letters) >= 10 else None


def _last_match(pattern: re.Pattern[str], text: str) -> str | None:
    matches = pattern.findall(text)
    return str(matches[-1]).upper() if matches else None


def _without_list(text: str) -> str:
    """Return a text out of a list of one text, as Python writes it, with its escapes read."""
    if text.startswith(("['", '["')) and text.endswith(("']", '"]')):
        text = text[2:-2].strip()
    return _unescape(text)


def _unescape(text: str) -> str:
    return text.replace(r"\n", "\n").replace(r"\'", "'")


def _value(kind: Callable[[str], T], text: str) -> T | None:
    """Return the number of that kind that a text is; None where it is none, or has more digits than Python reads."""
    try:
        return kind(text)
    except ValueError:
        return None
