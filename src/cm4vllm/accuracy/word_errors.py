"""The word error rate of whisper, and its normaliser of English text, of the published package openai-whisper.

Joined words count as right (speech2text/accuracy_eval.py and helpers.py). The package imports PyTorch when it is
imported as a whole; its normalisers do not need it, and are loaded alone, in a process of their own:

    python word_errors.py FOLDER < texts.json > normalised.json

FOLDER holds the packages openai-whisper and more-itertools (get,speech-packages); `regex` comes with nltk.
"""

import json
import os
import sys
import types
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rapidfuzz.distance import Levenshtein

#: Words that may be joined into one, at most.
_JOINED = 3


def word_error_rate(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the word error rate of normalised texts: all errors divided by the number of words in the references."""
    errors = words = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        wanted = reference.split()
        errors += _errors(hypothesis.split(), wanted)
        words += len(wanted)
    return errors / words


def _errors(said: list[str], wanted: list[str]) -> int:
    """Return the distance of two lists of words after words that are joined in one of them are joined in both."""
    ours, theirs = [], []
    at = there = 0
    while there < len(wanted) and at < len(said):
        of_reference, of_answer = _match(wanted, there, said, at)
        theirs.append("".join(wanted[there : there + of_reference]))
        ours.append("".join(said[at : at + of_answer]))
        there, at = there + of_reference, at + of_answer
    return Levenshtein.distance(theirs + wanted[there:], ours + said[at:])


def _match(wanted: list[str], there: int, said: list[str], at: int) -> tuple[int, int]:
    """Return how many words of the reference and of the answer stand for each other: one each where nothing fits."""
    if wanted[there] == said[at]:
        return 1, 1
    for count in range(1, _JOINED + 1):
        if there + count <= len(wanted) and "".join(wanted[there : there + count]) == said[at]:
            return count, 1
        if at + count <= len(said) and "".join(said[at : at + count]) == wanted[there]:
            return 1, count
    return 1, 1


def normalise_texts(texts: Sequence[str], packages: Path) -> list[str]:
    """Return each text as openai-whisper's EnglishTextNormalizer writes it. Raises InstallError without the package."""
    import subprocess

    from cm4vllm.common.errors import InstallError

    done = subprocess.run(
        [sys.executable, "-P", __file__, str(packages)],
        input=json.dumps(list(texts)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
        check=False,
    )
    if done.returncode:
        raise InstallError(
            "the texts cannot be normalised",
            cause=(done.stderr.strip().splitlines() or ["no output"])[-1],
            remedy="cm run script --tags=get,speech-packages --renew",
        )
    return list(json.loads(done.stdout))


def main() -> None:
    """Read a JSON list of texts, and print that of the normalised ones."""
    folder = Path(sys.argv[1])
    sys.path.append(str(folder))
    package = types.ModuleType("whisper")
    package.__path__ = [str(folder / "whisper")]
    sys.modules["whisper"] = package
    normalise = import_module("whisper.normalizers").EnglishTextNormalizer()
    json.dump([normalise(text) for text in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
