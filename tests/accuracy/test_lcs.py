"""The path through the table, word by word, against rouge-score's own table and backtrack."""

import random

import numpy as np
import pytest
from rouge_score.rouge_scorer import lcs_ind

from cm4vllm.accuracy import lcs


def bits(positions):
    return sum(1 << position for position in positions)


def draw_lines(seed, longest):
    draw = random.Random(seed)
    return [[draw.randrange(draw.choice((2, 5, 20))) for _ in range(draw.randint(1, longest))] for _ in range(12)]


@pytest.mark.parametrize("seed", range(20))
def test_the_path_in_a_line_of_any_length_is_the_backtracks(seed):
    reference, *candidates = draw_lines(seed, 150)
    wanted = set().union(*(lcs_ind(reference, candidate) for candidate in candidates))
    assert lcs.union(reference, candidates) == bits(wanted)


@pytest.mark.parametrize("seed", range(20))
def test_many_paths_at_once_are_the_backtracks(seed):
    references, candidates = draw_lines(seed, 64), sorted(draw_lines(seed + 100, 64), key=len, reverse=True)
    lanes = [(r, c) for c in range(12) for r in range(12)]
    masks = np.zeros((20, 12), np.uint64)
    for row, reference in enumerate(references):
        for place, word in enumerate(reference):
            masks[word, row] |= np.uint64(1 << place)
    starts = np.cumsum([0, *map(len, candidates)])
    computed = lcs.unions(
        lcs.Lanes(
            rows=np.array([len(references[r]) for r, _ in lanes]),
            columns=np.array([len(candidates[c]) for _, c in lanes]),
            start=np.array([starts[c] for _, c in lanes]),
            line=np.array([r for r, _ in lanes]),
            places=np.concatenate(candidates) * 12,
            masks=masks.ravel(),
        )
    )
    assert computed.tolist() == [bits(lcs_ind(references[r], candidates[c])) for r, c in lanes]
