"""The F1 of product categories, level by level (multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl/evaluation.py).

An answer is a JSON object with `category`, `brand` and `is_secondhand`; only the category counts. Of two paths
"a > b > c" the levels count that are the same from the first one on, over all samples together.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile

import msgspec

_BETWEEN = " > "
#: A level that no category has: an answer that cannot be read counts as so many of it as the right one has levels.
_PAD = "<|__PRED_CATEGORY_PAD__|>"
#: Texts that pydantic takes for a truth value, in any case.
_TRUTH_VALUES = frozenset("0 1 f t n y no yes off on false true".split())


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    category: str
    brand: str
    is_secondhand: bool | int | float | str


_decode = msgspec.json.Decoder(_Answer).decode


def category_of(answer: str) -> str | None:
    """Return the category in an answer; None where pydantic's ProductMetadata of the reference refuses it."""
    try:
        fields = _decode(answer)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    value = fields.is_secondhand
    is_truth = value.lower() in _TRUTH_VALUES if isinstance(value, str) else value in (0, 1)
    return fields.category if is_truth else None


def hierarchical_f1(answers: Sequence[tuple[str, str]]) -> float:
    """Return the F1 of pairs of an answer and the right category, in [0..1]."""
    common = said = wanted = 0
    for answer, right in answers:
        category = category_of(answer)
        # The reference splits the right one without more where it fills the place of an answer.
        path = category if category is not None else _BETWEEN.join([_PAD] * len(right.split(_BETWEEN)))
        ours, theirs = ([level.strip() for level in text.split(_BETWEEN)] for text in (path, right))
        # The levels that are the same from the first on.
        common += sum(1 for _ in takewhile(lambda levels: levels[0] == levels[1], zip(ours, theirs, strict=False)))
        said += len(ours)
        wanted += len(theirs)
    precision, recall = (common / count if count else 0.0 for count in (said, wanted))
    return 2 * (precision * recall) / (precision + recall) if precision + recall else 0.0


def catalogue_text(values: Mapping[str, float | int]) -> str:
    """Return what the reference writes to accuracy.txt, but for its last line.

    That is a digest of the score; in a submission the digest of the log stands there, as the checkers ask.
    """
    return f"Results\n\n{json.dumps({'f1': values['f1']})}\n"
