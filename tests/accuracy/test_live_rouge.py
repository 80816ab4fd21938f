"""Scores while a run goes on: of a random part of the answers, with bounds, within a share of one core."""

import math
import random
import statistics

import numpy as np
import pytest
from tokenizers import Tokenizer

from cm4vllm.accuracy import live_rouge
from cm4vllm.accuracy.answer_texts import Detokenizer
from cm4vllm.accuracy.live_rouge import LiveScores, live_scores
from cm4vllm.accuracy.rouge import TYPES
from cm4vllm.accuracy.scored_pairs import PairScorer, score_pairs
from cm4vllm.accuracy.scoring import score_run
from cm4vllm.accuracy.sentences import Sentences
from cm4vllm.common.errors import InstallError, ModelError
from cm4vllm.common.records import read_record
from cm4vllm.records.run import RunRecord

WORDS = "the ship from Riga Oslo landed sailed late ten tons of salt silk timber".split()


def texts(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 20))) for _ in range(count)]


class Time:
    """A clock that tests move by hand, and a processor that needs `cost` seconds for each answer that is decoded."""

    def __init__(self, folder, cost=0.0):
        self.now, self.busy, self.scored = 0.0, 0.0, 0
        self._cost, self._decode = cost, Detokenizer(folder).decode

    def decode(self, ids):
        self.busy += self._cost * len(ids)
        self.scored += len(ids)
        return self._decode(ids)


@pytest.fixture
def encode(model_folder):
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    return lambda text: tokenizer.encode(text).ids


def live_of(time, references, drawn, samples):
    scorer = PairScorer(Sentences("punkt-untrained"))
    return LiveScores(
        scorer,
        time,
        {index: references[index] for index in drawn},
        samples,
        clock=lambda: time.now,
        spent=lambda: time.busy,
    )


def test_once_all_are_in_the_means_are_the_final_scores_and_the_bounds_are_closed(model_folder, encode):
    predictions, references, time = texts(200, 1), texts(200, 2), Time(model_folder)
    scores = live_of(time, references, random.Random(3).sample(range(200), 200), 200)
    time.now = 1.0
    for start in range(0, 200, 50):
        shown = scores([(i, encode(predictions[i])) for i in range(start, start + 50)])
    final = score_pairs(predictions, references, Sentences("punkt-untrained"))
    count, means, halves = scores.means()
    assert count == 200
    assert means == pytest.approx([100 * np.mean(final.fmeasures[t]) for t in TYPES])
    assert halves.tolist() == [0.0] * 4
    assert shown.words.startswith(f"partial scores of 200 answers: ROUGE-1 {means[0]:.1f} ± 0.0, ROUGE-2 ")
    assert [score.mean for score in shown.scores] == pytest.approx(means, abs=1e-3)


def test_the_bounds_are_students_for_a_part_of_the_run(model_folder, encode):
    predictions, references, time = texts(400, 1), texts(400, 2), Time(model_folder)
    scores = live_of(time, references, range(100), 400)
    time.now = 1.0
    scores([(i, encode(predictions[i])) for i in range(400)])
    values = [
        100 * v
        for v in score_pairs(predictions[:100], references[:100], Sentences("punkt-untrained")).fmeasures["rouge1"]
    ]
    count, means, halves = scores.means()
    assert count == 100
    assert means[0] == pytest.approx(statistics.mean(values))
    # 1.984 is the 97.5 % point with 99 degrees of freedom
    assert halves[0] == pytest.approx(1.984 * statistics.stdev(values) / 10 * math.sqrt(1 - 100 / 400), rel=1e-3)


def test_the_bounds_hold_the_final_score_as_often_as_they_say(model_folder, encode):
    predictions, references = texts(600, 1), texts(600, 2)
    final = score_pairs(predictions, references, Sentences("punkt-untrained"))
    wanted = 100 * np.mean(final.fmeasures["rouge1"])
    tokens = [encode(text) for text in predictions]
    held = 0
    for seed in range(60):
        time = Time(model_folder)
        scores = live_of(time, references, random.Random(seed).sample(range(600), 40), 600)
        time.now = 1.0
        scores(list(enumerate(tokens)))
        _, means, halves = scores.means()
        held += abs(means[0] - wanted) <= halves[0]
    assert held >= 52  # of 60; with 95 % there would be fewer in one of 100 such sets


def test_scoring_takes_its_share_of_time_and_no_more(model_folder, encode):
    predictions, references, time = texts(1000, 1), texts(1000, 2), Time(model_folder, cost=0.001)
    scores = live_of(time, references, random.Random(3).sample(range(1000), 1000), 1000)
    for second in range(1, 11):
        time.now = float(second)
        scores([(i, encode(predictions[i])) for i in range(100 * second - 100, 100 * second)])
        assert time.busy <= live_rouge.SHARE * second + live_rouge.BATCH * 0.001
    assert time.busy > live_rouge.SHARE * 10 - live_rouge.BATCH * 0.001


def test_answers_that_came_early_count_no_more_often_than_others(model_folder, encode):
    """A hundred come and are all scored; then nine hundred come, too many at once."""
    predictions, references, time = texts(1000, 1), texts(1000, 2), Time(model_folder, cost=0.001)
    final = score_pairs(predictions, references, Sentences("punkt-untrained")).fmeasures["rouge1"]
    drawn = random.Random(3).sample(range(1000), 1000)
    scores = live_of(time, references, drawn, 1000)
    time.now = 10.0
    scores([(i, encode(predictions[i])) for i in range(100)])
    assert scores.means()[0] == 100
    scores([(i, encode(predictions[i])) for i in range(100, 1000)])
    time.now = 100.0
    scores([])
    count, means, _ = scores.means()
    assert 40 < count < 140
    assert means[0] == pytest.approx(100 * np.mean([final[i] for i in drawn[:count]]))


def test_few_answers_are_not_shown(model_folder, encode):
    predictions, references, time = texts(20, 1), texts(20, 2), Time(model_folder)
    scores = live_of(time, references, range(20), 20)
    time.now = 1.0
    assert scores([(i, encode(predictions[i])) for i in range(9)]).words == ""
    assert scores([(9, encode(predictions[9]))]).words.startswith("partial scores of 10 answers")


def test_a_sample_counts_once_and_only_if_it_was_drawn(model_folder, encode):
    predictions, references, time = texts(20, 1), texts(20, 2), Time(model_folder)
    scores = live_of(time, references, range(10), 20)
    time.now = 1.0
    for _ in range(2):
        scores([(i, encode(predictions[i])) for i in range(20)])
    assert time.scored == scores.means()[0] == 10


def test_what_breaks_in_scoring_does_not_break_the_run(model_folder, encode):
    time = Time(model_folder)
    scores = live_of(time, texts(20, 2), range(20), 20)
    time.decode = None
    time.now = 1.0
    for _ in range(2):
        assert scores([(0, encode("salt"))]).words == "no partial scores: TypeError: 'NoneType' object is not callable"


def test_live_scores_of_a_run_are_its_scores(accuracy_run, encode):
    outputs, answers = texts(30, 1), texts(30, 2)
    folder = accuracy_run.write(outputs, list(enumerate(answers)))
    scores = live_scores(read_record(folder / "run.json", RunRecord).settings)
    scores._clock = lambda: math.inf
    scores([(i, encode(text)) for i, text in enumerate(answers)])
    final = score_run(folder)
    count, means, _ = scores.means()
    assert count == 30
    assert [round(mean, 4) for mean in means.tolist()] == [final.values[t] for t in TYPES]


def test_what_scoring_would_lack_is_told_before_the_run(accuracy_run, tmp_path, monkeypatch):
    import nltk.data

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "none")])
    folder = accuracy_run.write(["salt"], [(0, "salt")], sentences="punkt_tab")
    with pytest.raises(InstallError, match="punkt_tab"):
        live_scores(read_record(folder / "run.json", RunRecord).settings)
    accuracy_run.write(["salt"], [(0, "salt")], tokenizer_sha256="0" * 64)
    with pytest.raises(ModelError, match="tokenizer"):
        live_scores(read_record(folder / "run.json", RunRecord).settings)
