"""The Porter stemmer of rouge-score, which is nltk's, made faster for words that have none of its endings."""

from nltk.stem.porter import PorterStemmer


class Stemmer(PorterStemmer):  # type: ignore[misc]
    """nltk's stemmer, which tries some fifty endings one by one on every word; most words have none of them."""

    _ENDINGS_2 = tuple(
        "tional enci anci izer bli alli entli eli ousli ation ator alism iveness fulness ousness aliti iviti biliti "
        "fulli logi".split()
    )
    _ENDINGS_3 = tuple("icate ative alize iciti ical ful ness".split())
    _ENDINGS_4 = tuple("al ance ence er ic able ible ant ent ion ou ism ate iti ous ive ize".split())

    def _step2(self, word: str) -> str:
        return super()._step2(word) if word.endswith(self._ENDINGS_2) else word

    def _step3(self, word: str) -> str:
        return super()._step3(word) if word.endswith(self._ENDINGS_3) else word

    def _step4(self, word: str) -> str:
        return super()._step4(word) if word.endswith(self._ENDINGS_4) else word
