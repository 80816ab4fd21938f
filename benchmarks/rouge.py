"""The time of ROUGE by rouge-score, on English prose: `python benchmarks/rouge.py [--json=FILE]`.

The time of a pair is that of the processor, in one process: sentences are split, words are stemmed, and all four types
are computed. The last figure is a whole job as it is after an accuracy run, in processes; it is scaled from fewer pairs
of the same length with --job=PAIRS.
"""

import os
import random
import re
import resource
import time
from collections.abc import Callable
from itertools import islice
from pydoc_data.topics import topics

from cm4vllm.accuracy.rouge import TYPES, PairScorer, expected_seconds, score_pairs
from cm4vllm.accuracy.sentences import UNTRAINED, Sentences
from figures import Figure, arguments, figure, report

#: Words of a text: about those of a summary (llama3.1-8b) and of a chat's answer (llama2-70b).
SHAPES = {"summary of 60 words": 60, "answer of 230 words": 230}
#: Pairs that are scored in a round.
PAIRS = 100
#: Share of a prediction's words that are others than the reference's, and of all words that no other text has.
OTHER_WORDS, NEW_WORDS = 0.25, 0.02
#: The size of llama2-70b's dataset, and its largest allowed time on two cores.
JOB_PAIRS, JOB_S, JOB_CORES = 24_576, 360.0, 2

Pair = tuple[str, str]


#: The sentences of Python's own manual.
_TEXT = " ".join(" ".join(topic.split()) for topic in topics.values())
_SENTENCES = [s for s in re.split(r"(?<=[.!?]) ", _TEXT) if 5 <= len(s.split()) <= 50]
_WORDS = _TEXT.split()


def pairs_of(words: int, count: int) -> list[Pair]:
    """Return pairs of a prediction and a reference of so many words."""
    draw = random.Random(words)  # noqa: S311 - texts, not secrets

    def changed(sentence: str, share: float, word: Callable[[], str]) -> str:
        return " ".join(word() if draw.random() < share else old for old in sentence.split())

    def new() -> str:
        return "".join(draw.choices("aeilmnorst", k=8)) + draw.choice(("", "s", "ing", "ation"))

    def pair() -> Pair:
        sentences: list[str] = []
        while sum(len(sentence.split()) for sentence in sentences) < words:
            sentences.append(changed(draw.choice(_SENTENCES), NEW_WORDS, new))
        prediction = [changed(sentence, OTHER_WORDS, lambda: draw.choice(_WORDS)) for sentence in sentences]
        draw.shuffle(prediction)
        return " ".join(prediction), " ".join(sentences)

    return [pair() for _ in range(count)]


def pair_time(shape: str, words: int, rounds: int) -> Figure:
    """Return the processor's time for a pair of so many words, in ms."""
    scorer, pairs, times = PairScorer(Sentences(UNTRAINED), TYPES), iter(pairs_of(words, PAIRS * rounds)), []
    for _ in range(rounds):
        some = list(islice(pairs, PAIRS))
        begin = time.process_time()
        for pair in some:
            scorer.score(*pair)
        times.append((time.process_time() - begin) / PAIRS * 1e3)
    return figure(shape, times, "ms/pair")


def job(count: int) -> list[Figure]:
    """Return the time of a whole job of so many pairs, that of its processors, and what the plan states."""
    words = max(SHAPES.values())
    predictions, references = zip(*pairs_of(words, count), strict=True)
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    score_pairs(predictions, references, Sentences(UNTRAINED), workers=JOB_CORES)
    took, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    scale, name = JOB_PAIRS / count, f"{JOB_PAIRS:,} answers of {words} words on {JOB_CORES} cores"
    return [
        figure(name, [took * scale], "s", at_most=JOB_S),
        figure(f"{name}, processor time / {JOB_CORES}", [busy * scale / JOB_CORES], "s", at_most=JOB_S),
        figure(f"{name}, as planned", [expected_seconds(JOB_PAIRS, words / 0.75, workers=JOB_CORES)], "s"),
    ]


def main() -> int:
    """Print the table."""
    parser = arguments("ROUGE by rouge-score", rounds=5)
    parser.add_argument("--job", type=int, default=JOB_PAIRS, metavar="PAIRS", help="pairs of the whole job; 0: none")
    options = parser.parse_args()
    figures = [pair_time(shape, words, options.rounds) for shape, words in SHAPES.items()]
    if options.job and len(os.sched_getaffinity(0)) >= JOB_CORES:
        figures += job(options.job)
    return report(figures, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
