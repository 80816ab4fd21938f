"""ROUGE of all pairs of a run: rouge-score's own numbers, on several processes and in order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.tokenize.punkt import PunktSentenceTokenizer
from rouge_score.rouge_scorer import RougeScorer

from cm4vllm.accuracy.rouge import TYPES, PairScorer, expected_seconds, score_pairs
from cm4vllm.accuracy.sentences import Sentences
from cm4vllm.common.errors import RunFailed

UNTRAINED = Sentences("punkt-untrained")
PLAIN = RougeScorer(list(TYPES), use_stemmer=True)
SCORER = PairScorer(UNTRAINED, TYPES)
SPLIT = PunktSentenceTokenizer().tokenize
TEXT = "the ship ships from Riga landed landing sailed ten tons of salt. silk, timber! on Monday Friday? It"


def texts(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(TEXT.split(), k=draw.randint(0, 40))) for _ in range(count)]


def plainly(prediction, reference):
    """Return what rouge-score gives without anything of ours."""
    scores = PLAIN.score("\n".join(SPLIT(reference.strip())), "\n".join(SPLIT(prediction.strip())))
    return {type_: score.fmeasure for type_, score in scores.items()}


#: Anything at all, with what parts words and lines more often than chance has it, and words that have the same stem.
WILD = st.lists(
    st.one_of(
        st.characters(), st.sampled_from("a A 12 \n \r \t . , ! ? ' \x0b \x85 \u2028 İ K ships shipping".split(" "))
    ),
    max_size=60,
).map("".join)


@given(WILD, WILD)
@settings(deadline=None, max_examples=200)
def test_any_pair_scores_as_rouge_score_does(prediction, reference):
    assert SCORER.score(prediction, reference)[0] == plainly(prediction, reference)


def test_many_pairs_give_what_rouge_score_gives_in_the_same_order():
    predictions, references = texts(300, 1), texts(300, 2)
    wanted = [plainly(*pair) for pair in zip(predictions, references, strict=True)]
    for workers, types in ((1, TYPES), (2, TYPES), (2, ["rougeL"])):
        reports = []
        computed = score_pairs(predictions, references, UNTRAINED, types, workers=workers, report=reports.append)
        assert computed.fmeasures == {type_: [scores[type_] for scores in wanted] for type_ in types}
        assert reports[0].startswith("ROUGE of 16 of 300 answers, about ")
        assert reports[0].endswith(" left")


def test_a_score_worked_out_by_hand():
    # 2 of 3 words, in order: precision = recall = 2/3; 1 of 2 pairs of words. "ships" and "ship" have the same stem.
    scores = score_pairs(["the ships sailed"], ["the ship landed"], UNTRAINED).fmeasures
    assert scores["rouge1"] == scores["rougeL"] == pytest.approx([2 / 3])
    assert scores["rouge2"] == pytest.approx([1 / 2])
    # Each sentence stands on a line of its own for rougeLsum; the length is that of the text as it is scored.
    swapped = score_pairs(["  Salt came. Silk left. \n"], ["Silk left. Salt came."], UNTRAINED)
    assert swapped.fmeasures["rougeLsum"] == [1.0] and swapped.fmeasures["rougeL"][0] < 1
    assert swapped.lengths == [len("Salt came.\nSilk left.")]
    assert score_pairs([], [], UNTRAINED).fmeasures == {type_: [] for type_ in TYPES}


def test_the_expected_time_is_that_of_the_longest_common_subsequences_and_shared_by_the_processes():
    assert expected_seconds(24_576, 307, workers=2) == pytest.approx(245, rel=0.02)
    assert expected_seconds(24_576, 307, ["rougeL"], workers=2) < 0.7 * expected_seconds(24_576, 307, workers=2)
    assert expected_seconds(100, 100, workers=4) == expected_seconds(100, 100, workers=1) / 4


def test_a_scoring_process_that_dies_is_reported():
    class Deadly(str):
        __slots__ = ()

        def __reduce__(self):
            import os

            return os._exit, (9,)  # what unpickles it ends

    with pytest.raises(RunFailed, match="ended unexpectedly"):
        score_pairs([Deadly("x")] * 300, ["y"] * 300, UNTRAINED, workers=2)
