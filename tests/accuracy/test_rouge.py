"""ROUGE of many pairs at once against rouge-score itself, and against values worked out by hand."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from cm4vllm.accuracy.rouge import TYPES, rouge
from cm4vllm.accuracy.rouge_words import Vocabulary

PLAIN = RougeScorer(list(TYPES), use_stemmer=True)
VOCABULARY = Vocabulary()

#: Few words, so that lines share many and the backtrack has ties to break; some with the same stem.
WORDS = st.sampled_from(
    ["a", "b", "c", "the", "ship", "ships", "shipping", "landed", "lands", "Riga", "salt", "Σ", "İstanbul", "don't"]
)
LINES = st.lists(WORDS, max_size=12).map(" ".join)
TEXTS = st.lists(LINES, max_size=8).map("\n".join)
#: Anything at all, with what parts words and lines more often than chance has it.
WILD = st.text(st.one_of(st.characters(), st.sampled_from("aAbB12 \n\r\t.,!?'\x0b\x85\u2028İK")), max_size=60)


def assert_same(predictions, references):
    ours = rouge(predictions, references, VOCABULARY)
    for index, pair in enumerate(zip(references, predictions, strict=True)):
        wanted = PLAIN.score(*pair)
        assert {t: ours[t][index] for t in TYPES} == {t: wanted[t].fmeasure for t in TYPES}, pair


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
@settings(deadline=None, max_examples=200)
def test_sentences_of_few_words_score_as_rouge_score_does(pairs):
    assert_same(*zip(*pairs, strict=True))


@given(st.lists(st.tuples(WILD, WILD), min_size=1, max_size=3))
@settings(deadline=None, max_examples=200)
def test_any_text_scores_as_rouge_score_does(pairs):
    assert_same(*zip(*pairs, strict=True))


@given(st.randoms(use_true_random=False), st.integers(50, 140), st.integers(1, 12))
@settings(deadline=None, max_examples=25)
def test_long_lines_score_as_rouge_score_does(draw, size, words):
    def text():
        lines = [" ".join(draw.choices("abcdefghijkl"[:words], k=draw.choice((size, 64, 65, 3)))) for _ in range(3)]
        return "\n".join(lines)

    assert_same([text(), text()], [text(), text()])


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("", ""),
        ("", "salt"),
        ("salt", ""),
        ("...", "?!"),
        ("...\n\n,", "salt\n."),
        ("ship " * 300, "ship"),
        ("\n".join(["salt"] * 200), "\n".join(["salt silk"] * 150)),
        ("salt\r\nsilk", "salt\u2028silk"),
        ("K İ ß", "k i ss"),
        ("\ud800 salt", "salt \udfff"),
    ],
)
def test_texts_at_the_edge_score_as_rouge_score_does(prediction, reference):
    assert_same([prediction], [reference])


def test_a_thousand_words_score_as_rouge_score_does():
    draw = random.Random(5)
    words = [stem + end for stem in ("land", "sail", "load", "ship", "trad") for end in ("", "s", "ed", "ing", "er")]
    texts = ["\n".join(" ".join(draw.choices(words, k=100)) for _ in range(10)) for _ in range(2)]
    assert_same(texts[:1], texts[1:])


def test_pairs_do_not_mix():
    ours = rouge(["salt", "silk", ""], ["silk", "silk", "salt"], VOCABULARY)
    assert {t: ours[t].tolist() for t in TYPES} == {
        "rouge1": [0, 1, 0],
        "rouge2": [0, 0, 0],
        "rougeL": [0, 1, 0],
        "rougeLsum": [0, 1, 0],
    }


def test_no_pairs_have_no_scores():
    assert {t: len(v) for t, v in rouge([], [], VOCABULARY).items()} == dict.fromkeys(TYPES, 0)


def test_a_score_worked_out_by_hand():
    # 2 of 3 words, in order: precision = recall = 2/3; 1 of 2 pairs of words.
    scores = rouge(["the ship sailed"], ["the ship landed"], VOCABULARY)
    assert scores["rouge1"][0] == scores["rougeL"][0] == pytest.approx(2 / 3)
    assert scores["rouge2"][0] == pytest.approx(1 / 2)


def test_words_are_stemmed():
    assert rouge(["ships landing"], ["ship landed"], VOCABULARY)["rouge1"].tolist() == [1.0]


def test_a_text_may_have_more_words_than_there_are_code_points_below_the_surrogates():
    words = [f"w{number}" for number in range(56_000)]
    ours = rouge([" ".join(words)], [" ".join(words[500:])], Vocabulary())
    precision = 55_500 / 56_000
    assert ours["rougeL"][0] == 2 * precision / (precision + 1)
