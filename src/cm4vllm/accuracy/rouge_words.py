"""The words of many texts as numbers: what rouge-score's tokenizer makes of each line."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

#: Letters and digits stay, and so do ends of lines; every other byte parts two words.
_PARTED = bytes(c if chr(c).isascii() and (chr(c).islower() or chr(c).isdigit() or c == 10) else 32 for c in range(256))
#: rouge-score leaves words of up to three letters as they are.
_LONGEST_UNSTEMMED = 3


@dataclass(frozen=True)
class Texts:
    """The words of some texts, text by text and line by line; lines without a word are left out.

    `words` holds the number of each word, `lengths` the words of each line, `lines` the lines of each text.
    """

    words: IntArray
    lengths: IntArray
    lines: IntArray

    @property
    def sizes(self) -> IntArray:
        """The number of words of each text."""
        totals = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.lengths)))
        ends = np.cumsum(self.lines)
        sizes: IntArray = totals[ends] - totals[ends - self.lines]
        return sizes


class Vocabulary(dict[bytes, int]):
    """The number of each word: the same for words with the same Porter stem. Each word is stemmed once."""

    def __init__(self) -> None:
        """Load the stemmer, which takes a third of a second."""
        # nltk takes a third of a second to load: a plan and a run that scores nothing do without.
        from cm4vllm.accuracy.stemmer import Stemmer

        super().__init__()
        self.stems: dict[str, int] = {}
        self._stem = Stemmer().stem

    def read(self, texts: Sequence[str]) -> Texts:
        """Return the words of each text. Only a line feed ends a line, and only a-z and 0-9 are parts of words."""
        number = self.__getitem__
        words: list[int] = []
        lengths: list[int] = []
        lines: list[int] = []
        for text in texts:
            before = len(lengths)
            for line in text.lower().encode("ascii", "replace").translate(_PARTED).split(b"\n"):
                if numbers := line.split():
                    words += map(number, numbers)
                    lengths.append(len(numbers))
            lines.append(len(lengths) - before)
        return Texts(np.array(words, np.int64), np.array(lengths, np.int64), np.array(lines, np.int64))

    def __missing__(self, word: bytes) -> int:
        text = word.decode()
        stem = self._stem(text) if len(text) > _LONGEST_UNSTEMMED else text
        self[word] = number = self.stems.setdefault(stem, len(self.stems))
        return number
