"""The word error rate, against the reference's own functions, and whisper's normaliser."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest

from cm4vllm.accuracy.scoring import score_run
from cm4vllm.accuracy.word_errors import word_error_rate
from cm4vllm.common.errors import InstallError, RunFailed
from cm4vllm.results.log_folders import scores_of
from cm4vllm.rules import Mode, Scenario, terms

LABELS = terms("v6.1", "whisper", Scenario.OFFLINE, Mode.ACCURACY).labels

WORDS = "the harbour log says north wind to day today mister mr colour color twenty one 21 it's a an every one".split()


@pytest.mark.parametrize(
    ("said", "wanted", "rate"),
    [
        ("north wind", "north wind", 0),
        ("northwind", "north wind", 0),
        ("north wind", "northwind", 0),
        ("abc", "a b c", 0),
        ("abcd", "a b c d", 1),  # at most three words are joined
        ("south wind", "north wind", 1 / 2),
        ("", "north wind", 1),
        ("north wind late", "north", 2),
    ],
)
def test_joined_words_are_right(said, wanted, rate):
    assert word_error_rate([said], [wanted]) == rate


def test_errors_are_summed_over_all_words():
    assert word_error_rate(["a", "x y z"], ["b", "x y z"]) == 1 / 4


def generated(count):
    draw = random.Random(18)
    for _ in range(count):
        wanted = [draw.choice(WORDS) for _ in range(draw.randint(1, 14))]
        said = [word for word in wanted if draw.random() > 0.1]
        while draw.random() < 0.5:
            at = draw.randint(0, len(said))
            kind = draw.random()
            if kind < 0.4 and at + 1 < len(said):
                said[at : at + 2] = ["".join(said[at : at + 2])]
            elif kind < 0.7:
                said.insert(at, draw.choice(WORDS))
            elif at < len(said):
                said[at : at + 1] = [said[at][:2], said[at][2:]]
        yield " ".join(filter(None, said)), " ".join(wanted)


@pytest.fixture(scope="module")
def reference(tmp_path_factory, official_file):
    """The reference's functions, out of mlcommons/inference."""
    folder = tmp_path_factory.mktemp("speech2text")
    for name in ("helpers.py", "legacy_helpers.py"):
        (folder / name).write_text(official_file("b66003e1", f"speech2text/{name}"))
    return folder


def test_it_is_the_references_to_the_last_bit(reference):
    pairs = list(generated(6000))
    program = (
        "import json, sys; from helpers import compute_wer_with_concatenation as score\n"
        "print(json.dumps([score(h.split(), r.split()) for h, r in json.load(sys.stdin)]))"
    )
    words, given = [sys.executable, "-c", program], json.dumps(pairs)
    theirs = json.loads(subprocess.check_output(words, cwd=reference, input=given, text=True))
    for (said, wanted), (errors, words) in zip(pairs, theirs, strict=True):
        assert word_error_rate([said], [wanted]) == errors / words, (said, wanted)
    said, wanted = zip(*pairs, strict=True)
    assert word_error_rate(said, wanted) == sum(e for e, _ in theirs) / sum(w for _, w in theirs)


def labels(text):
    return np.array([LABELS.index(character) for character in text], np.int64).tobytes()


@pytest.fixture
def packages(tmp_path):
    """A folder with a package of the name and the form of openai-whisper, whose normaliser lowers the text."""
    folder = tmp_path / "packages" / "whisper" / "normalizers"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('it needs PyTorch')\n")
    (folder / "__init__.py").write_text(
        "class EnglishTextNormalizer:\n    __call__ = lambda self, text: text.lower()\n"
    )
    return str(tmp_path / "packages")


def test_a_run_whose_log_has_labels_is_scored(accuracy_run, packages):
    said = [(0, "ten tons of salt"), (2, "silk"), (1, "thelog says it's late")]
    folder = accuracy_run.write(
        ["ten tons of silk", "the log says: it's late", "silk"], said, benchmark="whisper", data=labels
    )
    record = score_run(folder, speech_packages=packages)
    assert record.values["accuracy"] == (1 - 1 / 10) * 100  # a colon is none of the labels
    (score,) = record.scores
    assert (score.metric, score.met) == ("ACCURACY", False)
    text = folder / "accuracy.txt"
    assert text.read_text() == f"Word Error Rate: {1 / 10 * 100}%, accuracy={(1 - 1 / 10) * 100}%\n"
    assert scores_of(text) == {"accuracy": 90.0}  # as the checkers read it


def test_labels_that_stand_for_no_character_are_refused(accuracy_run, packages):
    folder = accuracy_run.write(
        ["salt"], [(0, "salt")], benchmark="whisper", data=lambda text: np.array([len(LABELS)], np.int64).tobytes()
    )
    with pytest.raises(RunFailed, match="labels outside 0 to 41"):
        score_run(folder, speech_packages=packages)


def test_without_the_normaliser_nothing_is_scored(accuracy_run, tmp_path):
    folder = accuracy_run.write(["salt"], [(0, "salt")], benchmark="whisper", data=labels)
    for given in ("", str(tmp_path)):
        with pytest.raises(InstallError, match="normalise"):
            score_run(folder, speech_packages=given)
    assert not (folder / "accuracy.txt").exists()
