"""ROUGE of ours against rouge-score, on English prose: `python benchmarks/rouge.py [--json=FILE]`.

Both get the same texts, one sentence a line, and do the same work: words, stems and all four types. The time is that of
the processor, in one process; ours begins each round without a word learnt. The last figure is a whole job as it is
after an accuracy run: sentences are split, two processes score, and rouge-score verifies a sample.
"""

import os
import random
import re
import time
from collections.abc import Callable
from functools import partial
from pydoc_data.topics import topics

from cm4vllm.accuracy.rouge import TYPES, rouge
from cm4vllm.accuracy.rouge_words import Vocabulary
from cm4vllm.accuracy.scored_pairs import CHUNK, score_pairs
from cm4vllm.accuracy.sentences import UNTRAINED, Sentences
from figures import Figure, arguments, figure, interleaved, ratios, report

#: Words of a text: about those of a summary (llama3.1-8b) and of a chat's answer (llama2-70b).
SHAPES = {"summary of 60 words": 60, "answer of 230 words": 230}
#: Pairs that each scores in a round: rouge-score is slow, and ours has more to learn at first.
PLAIN_PAIRS, OUR_PAIRS = 40, 2000
#: Share of a prediction's words that are others than the reference's, and of all words that no other text has.
OTHER_WORDS, NEW_WORDS = 0.25, 0.02
#: The size of llama2-70b's dataset, and its largest allowed time on two cores.
JOB_PAIRS, JOB_S, JOB_CORES = 24_576, 30.0, 2

Pair = tuple[str, str]


class Prose:
    """Pairs of a prediction and a reference, drawn from the sentences of Python's own manual."""

    def __init__(self, seed: int) -> None:
        text = " ".join(" ".join(topic.split()) for topic in topics.values())
        self._sentences = [s for s in re.split(r"(?<=[.!?]) ", text) if 5 <= len(s.split()) <= 50]
        self._words = text.split()
        self._draw = random.Random(seed)  # noqa: S311 - texts, not secrets

    def pair(self, words: int) -> Pair:
        sentences: list[str] = []
        while sum(len(sentence.split()) for sentence in sentences) < words:
            sentences.append(self._changed(self._draw.choice(self._sentences), NEW_WORDS, self._new))
        other = partial(self._draw.choice, self._words)
        prediction = [self._changed(sentence, OTHER_WORDS, other) for sentence in sentences]
        self._draw.shuffle(prediction)
        return "\n".join(prediction), "\n".join(sentences)

    def _changed(self, sentence: str, share: float, word: Callable[[], str]) -> str:
        return " ".join(word() if self._draw.random() < share else old for old in sentence.split())

    def _new(self) -> str:
        return "".join(self._draw.choices("aeilmnorst", k=8)) + self._draw.choice(("", "s", "ing", "ation"))


def ours(pairs: list[Pair]) -> dict[str, list[float]]:
    """Return our scores by type."""
    vocabulary = Vocabulary()
    scores: dict[str, list[float]] = {type_: [] for type_ in TYPES}
    for start in range(0, len(pairs), CHUNK):
        predictions, references = zip(*pairs[start : start + CHUNK], strict=True)
        for type_, values in rouge(predictions, references, vocabulary).items():
            scores[type_] += values.tolist()
    return scores


def plain(pairs: list[Pair]) -> dict[str, list[float]]:
    """Return rouge-score's own."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(TYPES), use_stemmer=True)
    scored = [scorer.score(reference, prediction) for prediction, reference in pairs]
    return {type_: [float(scores[type_].fmeasure) for scores in scored] for type_ in TYPES}


def seconds_a_pair(score: Callable[[list[Pair]], object], pairs: list[Pair]) -> float:
    """Return the processor's time that `score` takes for a pair."""
    begin = time.process_time()
    score(pairs)
    return (time.process_time() - begin) / len(pairs)


def speed(shape: str, words: int, rounds: int) -> list[Figure]:
    """Return how much faster ours is on texts of so many words, and how far its scores are off."""
    prose = Prose(words)
    pairs = [prose.pair(words) for _ in range(OUR_PAIRS)]
    few = pairs[:PLAIN_PAIRS]
    expected, computed = plain(few), ours(few)
    off = [abs(a - b) for type_ in TYPES for a, b in zip(computed[type_], expected[type_], strict=True)]
    measured = interleaved(
        {"plain": partial(seconds_a_pair, plain, few), "ours": partial(seconds_a_pair, ours, pairs)}, rounds
    )
    return [
        figure(f"{shape}: rouge-score / ours", ratios(measured["plain"], measured["ours"]), "x", at_least=50),
        figure(f"{shape}: ours", [value * 1e6 for value in measured["ours"]], "us/pair"),
        figure(f"{shape}: rouge-score", [value * 1e6 for value in measured["plain"]], "us/pair"),
        figure(f"{shape}: largest difference", [max(off)], "", at_most=0),
    ]


def job(count: int) -> Figure:
    """Return the time of a whole job of so many pairs."""
    prose = Prose(count)
    pairs = [prose.pair(max(SHAPES.values())) for _ in range(count)]
    predictions, references = ([text.replace("\n", " ") for text in texts] for texts in zip(*pairs, strict=True))
    begin = time.monotonic()
    score_pairs(predictions, references, Sentences(UNTRAINED), workers=JOB_CORES)
    name = f"{count:,} answers of {max(SHAPES.values())} words on {JOB_CORES} cores"
    return figure(name, [time.monotonic() - begin], "s", at_most=JOB_S * count / JOB_PAIRS)


def main() -> int:
    """Print the table."""
    parser = arguments("ROUGE of ours against rouge-score", rounds=5)
    parser.add_argument("--job", type=int, default=JOB_PAIRS, metavar="PAIRS", help="pairs of the whole job; 0: none")
    options = parser.parse_args()
    figures = [f for shape, words in SHAPES.items() for f in speed(shape, words, options.rounds)]
    if options.job and len(os.sched_getaffinity(0)) >= JOB_CORES:
        figures.append(job(options.job))
    return report(figures, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
