"""Words out of texts, against rouge-score's tokenizer."""

from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.stem.porter import PorterStemmer
from rouge_score.tokenize import tokenize

from cm4vllm.accuracy.rouge_words import Vocabulary

STEMMER = PorterStemmer()
#: The endings that the rules of nltk's stemmer name.
ENDS = """
    sses ies ss s ied eed ed ing at bl iz y ational tional enci anci izer bli abli alli entli eli ousli ization ation
    ator alism iveness fulness ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful ness al
    ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize e ll
""".split()
#: Words that the rules of the stemmer apply to, and others.
WORDS = st.one_of(
    st.text("aeiouylstz", min_size=1, max_size=6).flatmap(
        lambda root: st.sampled_from(ENDS).map(lambda end: root + end)
    ),
    st.text(max_size=8),
)


def stems(vocabulary, text):
    words = vocabulary.read([text]).words.tolist()
    names = {number: stem for stem, number in vocabulary.stems.items()}
    return [names[number] for number in words]


@given(st.lists(WORDS, max_size=20).map(" ".join))
@settings(deadline=None)
def test_words_and_their_stems_are_those_of_rouge_score(text):
    assert stems(Vocabulary(), text) == tokenize(text, STEMMER)


def test_no_ending_is_overlooked():
    roots = ["", "b", "tr", "ab", "form", "relat", "hopef", "sens", "adopt", "99", "ay", "yy"]
    words = [root + first + last for root in roots for first in ["", *ENDS] for last in ENDS]
    assert stems(Vocabulary(), " ".join(words)) == tokenize(" ".join(words), STEMMER)


def test_lines_without_a_word_are_left_out():
    texts = Vocabulary().read(["Salt came.\n\n...\nSilk left early", "", "\n?", "x"])
    assert texts.lengths.tolist() == [2, 3, 1]
    assert texts.lines.tolist() == [2, 0, 0, 1]
    assert texts.sizes.tolist() == [5, 0, 0, 1]


def test_a_word_keeps_its_number():
    vocabulary = Vocabulary()
    first, second = (vocabulary.read([text]).words.tolist() for text in ("Ships LANDED", "landing of ships"))
    assert first == [0, 1]
    assert second == [1, 2, 0]
    assert len(vocabulary.stems) == 3
