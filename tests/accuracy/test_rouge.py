"""ROUGE against rouge-score itself and against values worked out by hand."""

import random

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from cm4vllm.accuracy.rouge import TYPES, score_pairs
from cm4vllm.common.errors import InstallError, UsageError

TEXT = "the ship ships from Riga landed landing sailed ten tons of salt. silk, timber! on Monday Friday? It"


def texts(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(TEXT.split(), k=draw.randint(0, 40))) for _ in range(count)]


def test_equal_texts_score_one_and_disjoint_ones_zero():
    scores = score_pairs(["the ship landed", "a b"], ["the ship landed", "c d"], "punkt-untrained")
    for type_ in TYPES:
        assert scores.fmeasures[type_] == [1.0, 0.0]


def test_a_score_worked_out_by_hand():
    # 2 of 3 words, in order: precision = recall = 2/3; 1 of 2 pairs of words.
    scores = score_pairs(["the ship sailed"], ["the ship landed"], "punkt-untrained").fmeasures
    assert scores["rouge1"][0] == scores["rougeL"][0] == pytest.approx(2 / 3)
    assert scores["rouge2"][0] == pytest.approx(1 / 2)


def test_words_are_stemmed():
    assert score_pairs(["ships landing"], ["ship landed"], "punkt-untrained").fmeasures["rouge1"] == [1.0]


def test_sentences_are_put_on_lines_of_their_own_for_rouge_lsum():
    prediction, reference = "Salt came. Silk left.", "Silk left. Salt came."
    scores = score_pairs([prediction], [reference], "punkt-untrained").fmeasures
    assert scores["rougeLsum"] == [1.0]
    assert scores["rougeL"][0] < 1


def test_the_length_is_that_of_the_text_as_it_is_scored():
    scores = score_pairs(["  Salt came. Silk left. \n"], ["x"], "punkt-untrained")
    assert scores.lengths == [len("Salt came.\nSilk left.")]


@pytest.mark.parametrize("workers", [1, 2])
def test_many_pairs_give_what_rouge_score_gives_in_the_same_order(workers):
    predictions, references = texts(600, 1), texts(600, 2)
    ours = score_pairs(predictions, references, "punkt-untrained", workers=workers)
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    split = PunktSentenceTokenizer().tokenize
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    for i in range(0, 600, 7):
        wanted = scorer.score("\n".join(split(references[i].strip())), "\n".join(split(predictions[i].strip())))
        assert {t: ours.fmeasures[t][i] for t in TYPES} == {t: wanted[t].fmeasure for t in TYPES}
    assert 0 < np.mean(ours.fmeasures["rougeLsum"]) < 1


def test_the_english_model_is_asked_for_and_not_fetched(monkeypatch, tmp_path):
    import nltk.data

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(InstallError, match="punkt_tab") as failure:
        score_pairs(["x"], ["y"], "punkt_tab")
    assert failure.value.remedy == "python -m nltk.downloader punkt_tab"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_splitter_is_refused():
    with pytest.raises(UsageError, match="spacy"):
        score_pairs(["x"], ["y"], "spacy")
