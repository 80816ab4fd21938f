"""Exact matches of llama3.1-405b: an answer to a question, and codes to be retrieved from a long text.

The numbers are those of the functions `qa_em` and `niah_em` of mlcommons/inference
language/llama3.1-405b/evaluate-accuracy.py, in percent, their oddities included.
"""

import re

_CODE = re.compile(r"\w{8}-\w{4}-\w{4}-\w{4}-\w{12}")
_SPACES = re.compile(r"\s+")
_ANSWER = "Answer: "


def percent_answered(prediction: str, reference: str) -> float:
    """Return 100 if the prediction is one of the answers in `reference` (separated by `|`), else 0.

    Only the text after the last "Answer: " counts, or the whole text without one; case and spaces do not. A prediction
    that is itself a part of the reference, the empty one too, counts as right.
    """
    given = prediction.rpartition(_ANSWER)[2]
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
