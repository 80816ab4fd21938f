"""All pairs of a run: on several processes, in order, and checked by rouge-score."""

import random

import numpy as np
import pytest
from nltk.tokenize.punkt import PunktSentenceTokenizer
from rouge_score.rouge_scorer import RougeScorer

from cm4vllm.accuracy import scored_pairs
from cm4vllm.accuracy.rouge import TYPES
from cm4vllm.accuracy.scored_pairs import VERIFIED, PairScorer, score_pairs
from cm4vllm.accuracy.sentences import Sentences
from cm4vllm.common.errors import RunFailed

TEXT = "the ship ships from Riga landed landing sailed ten tons of salt. silk, timber! on Monday Friday? It"
UNTRAINED = Sentences("punkt-untrained")


def texts(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(TEXT.split(), k=draw.randint(0, 40))) for _ in range(count)]


@pytest.mark.parametrize("workers", [1, 2])
def test_many_pairs_give_what_rouge_score_gives_in_the_same_order(workers):
    predictions, references = texts(300, 1), texts(300, 2)
    ours = score_pairs(predictions, references, UNTRAINED, workers=workers)
    split = PunktSentenceTokenizer().tokenize
    scorer = RougeScorer(list(TYPES), use_stemmer=True)
    wanted = {type_: [] for type_ in TYPES}
    for prediction, reference in zip(predictions, references, strict=True):
        scores = scorer.score("\n".join(split(reference.strip())), "\n".join(split(prediction.strip())))
        for type_ in TYPES:
            wanted[type_].append(scores[type_].fmeasure)
    assert ours.fmeasures == wanted
    assert {t: np.mean(ours.fmeasures[t]) for t in TYPES} == {t: np.mean(wanted[t]) for t in TYPES}
    assert ours.verified == VERIFIED


def test_a_score_that_rouge_score_does_not_give_is_refused(monkeypatch):
    right = PairScorer.score

    def wrong(self, predictions, references):
        scores = right(self, predictions, references)
        scores.fmeasures["rougeLsum"][3] += 1e-16
        return scores

    monkeypatch.setattr(PairScorer, "score", wrong)
    with pytest.raises(RunFailed, match="differ from rouge-score's") as failure:
        score_pairs(texts(20, 1), texts(20, 2), UNTRAINED)
    assert "pair 3: rougeLsum is" in failure.value.cause
    assert "1 differences in 20 pairs" in failure.value.cause


def test_another_seed_verifies_other_pairs(monkeypatch):
    verified = []
    monkeypatch.setattr(scored_pairs, "VERIFIED", 5)
    monkeypatch.setattr(scored_pairs, "_verify", lambda scores, expected: verified.append(list(expected)))
    for seed in ("a", "a", "b"):
        assert score_pairs(texts(50, 1), texts(50, 2), UNTRAINED, seed=seed).verified == 5
    assert verified[0] == verified[1] != verified[2]


def test_a_scoring_process_that_dies_is_told(monkeypatch):
    class Deadly(str):
        __slots__ = ()

        def __reduce__(self):
            import os

            return os._exit, (9,)  # what unpickles it ends

    with pytest.raises(RunFailed, match="ended unexpectedly"):
        score_pairs([Deadly("x")] * 300, ["y"] * 300, UNTRAINED, workers=2)


def test_sentences_are_put_on_lines_of_their_own_for_rouge_lsum():
    prediction, reference = "Salt came. Silk left.", "Silk left. Salt came."
    scores = score_pairs([prediction], [reference], UNTRAINED).fmeasures
    assert scores["rougeLsum"] == [1.0]
    assert scores["rougeL"][0] < 1


def test_the_length_is_that_of_the_text_as_it_is_scored():
    assert score_pairs(["  Salt came. Silk left. \n"], ["x"], UNTRAINED).lengths == [len("Salt came.\nSilk left.")]
