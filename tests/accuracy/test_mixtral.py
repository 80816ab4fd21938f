"""Scores of mixtral-8x7b are those of its reference script, whose main program runs beside ours."""

import ast
import contextlib
import io
import json
import random
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from nltk.tokenize.punkt import PunktSentenceTokenizer
from rouge_score import rouge_scorer

from cm4vllm.accuracy.gsm8k import is_solved, number_in
from cm4vllm.accuracy.metric_families import Samples, rouge_gsm8k_and_mbxp
from cm4vllm.accuracy.rouge import TYPES
from cm4vllm.accuracy.scoring import SCORERS, lacks_of, score_run
from cm4vllm.accuracy.sentences import Sentences
from cm4vllm.rules import Mode, Scenario, terms

COMMIT = "b66003e1"
SCRIPT = "language/mixtral-8x7b/evaluate-accuracy.py"
UNTRAINED = Sentences("punkt-untrained")
TERMS = terms("v6.0", "mixtral-8x7b", Scenario.OFFLINE, Mode.ACCURACY)
#: Answers are made of these parts: numbers in many spellings, and texts that the script treats differently.
PARTS = [
    "the ship",
    "landed",
    "40",
    "-7",
    "1,200",
    "5,6,00",
    ".5",
    "3.",
    "0.25",
    "00018",
    "The answer is",
    "The answer is 12",
    "\nQ:",
    "Q:",
    "$18",
    "18%",
    "1.2.3",
    ",,",
    ",7",
    "-",
    "--4",
    "\N{ARABIC-INDIC DIGIT THREE}",
    "1e3",
    "inf",
    "nan",
    "",
    "\n",
    ".",
    "7" * 400,
    "São",
]
REFERENCES = ["40", "-7", "1200", "0.5", "3", "0.25", "18", "12", "18.0", "5600", "1,200", "x", "", "nan", "inf", "3.0"]


@pytest.fixture(scope="module")
def reference(official_file):
    """The main program of the reference script: the numbers that it prints for rows and answers."""

    import pandas as pd

    tree = ast.parse(official_file(COMMIT, SCRIPT))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    code = compile(tree, SCRIPT, "exec")

    class CodePoints:
        """In the place of the model's tokenizer: a token is a character."""

        def batch_decode(self, answers, skip_special_tokens):
            return [self.decode(answer, skip_special_tokens) for answer in answers]

        def decode(self, answer, skip_special_tokens):
            return "".join(map(chr, answer))

    def compute(predictions, references, use_stemmer, use_aggregator):
        scorer = rouge_scorer.RougeScorer(list(TYPES), use_stemmer=use_stemmer)
        scores = [scorer.score(wanted, given) for wanted, given in zip(references, predictions, strict=True)]
        return {type_: [score[type_].fmeasure for score in scores] for type_ in TYPES}

    def printed(folder, rows, answers):
        pd.DataFrame(rows).rename(columns={"output": "gt_output"}).to_pickle(folder / "dataset.pkl")
        entries = [
            {"qsl_idx": n, "data": np.array(list(map(ord, text)), np.int64).tobytes().hex()}
            for n, text in enumerate(answers)
        ]
        (folder / "log.json").write_text(json.dumps(entries))
        names = {
            "re": re,
            "np": np,
            "pd": pd,
            "json": json,
            "argparse": __import__("argparse"),
            "nltk": SimpleNamespace(download=lambda name: None, sent_tokenize=PunktSentenceTokenizer().tokenize),
            "evaluate": SimpleNamespace(load=lambda name: SimpleNamespace(compute=compute)),
            "AutoTokenizer": SimpleNamespace(from_pretrained=lambda *_, **__: CodePoints()),
        }
        exec(code, names)
        programs = ModuleType("evaluate_mbxp")
        programs.evaluate_mbxp = lambda results, workers: -1.0
        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
            patch.setitem(sys.modules, "evaluate_mbxp", programs)
            patch.setattr(
                sys,
                "argv",
                [
                    SCRIPT,
                    "--checkpoint-path=x",
                    f"--dataset-file={folder / 'dataset.pkl'}",
                    f"--mlperf-accuracy-file={folder / 'log.json'}",
                ],
            )
            names["main"]()
        return ast.literal_eval(out.getvalue().strip().splitlines()[-1])

    return printed


def cases(count, seed):
    """Return rows and answers: most of GSM8K, whose answers are right as often as wrong."""
    draw = random.Random(seed)
    rows, answers = [], []
    for number in range(count):
        kind = draw.choices(["GSM8K", "OpenOrca", "MBXP"], [90, 6, 4])[0]
        wanted = draw.choice(REFERENCES) if kind == "GSM8K" else " ".join(draw.choices(PARTS[:8], k=draw.randint(0, 9)))
        answer = " ".join(draw.choices(PARTS, k=draw.randint(0, 9)))
        if draw.random() < 0.6:
            answer += draw.choice([" It is ", " The answer is "]) + wanted
        rows.append({"id": f"python_{number}", "input": "x", "output": wanted, "dataset": kind})
        answers.append(answer)
    return rows, answers


def test_the_numbers_are_those_that_the_reference_prints(reference, tmp_path):
    rows, answers = cases(6000, 1)
    ours = rouge_gsm8k_and_mbxp(Samples(answers, rows, UNTRAINED, workers=1))
    theirs = reference(tmp_path, rows, answers)
    assert theirs.pop("mbxp") == -1.0  # it ran what stands in its place
    assert {**ours.values, "gen_len": ours.characters} == {key: theirs[key] for key in (*TYPES, "gsm8k", "gen_len")}
    assert 10 < ours.values["gsm8k"] < 80


def test_each_answer_to_a_problem_is_judged_as_the_reference_does(reference, tmp_path):
    draw = random.Random(2)
    kinds = set()
    for _ in range(60):  # small sets, so that no two errors cancel out
        texts = [" ".join(draw.choices(PARTS, k=draw.randint(0, 5))) for _ in range(2)]
        rows = [{"id": "a", "input": "x", "output": draw.choice(REFERENCES), "dataset": "GSM8K"} for _ in texts]
        right = [is_solved(text, row["output"]) for text, row in zip(texts, rows, strict=True)]
        assert reference(tmp_path, rows, texts)["gsm8k"] == 50.0 * sum(right), (texts, rows)
        kinds.update(right)
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("He pays 1,200 and 5.", "5"),
        ("The answer is 12. Not 13.", "12"),
        ("The answer is unknown, 4 or 5", "4"),
        ("7 apples. The answer is", "7"),
        ("none", ""),
        ("it is -3", "-3"),
        ("a 2. The answer is 1. The answer is 9,0", "9,0"),
    ],
)
def test_the_number_of_an_answer(text, number):
    assert number_in(text) == number


@pytest.mark.parametrize(
    ("prediction", "wanted", "right"),
    [
        ("The answer is 1,200.", "1200", True),
        ("It is 18\nQ: and 20?", "18", True),
        ("18.00", "18", True),
        ("18", "x", False),
        ("", "", False),
        ("seven", "7", False),
    ],
)
def test_an_answer_is_right_by_its_number(prediction, wanted, right):
    assert is_solved(prediction, wanted) is right


def test_a_run_names_the_metric_that_is_not_scored(accuracy_run):
    kinds = ["OpenOrca", "GSM8K", "MBXP", "GSM8K"]
    wanted = ["the ship from Riga landed", "10", "assert f() == 1", "7"]
    answers = list(enumerate(["the ship from Oslo landed", "salt", "ten", "tons"]))
    folder = accuracy_run.write(wanted, answers, columns=[{"dataset": kind} for kind in kinds])
    accuracy_run.change(terms=TERMS)
    record = score_run(folder)
    assert record.values["rouge1"] == pytest.approx(80.0)
    assert record.values["gsm8k"] == 0.0
    assert [score.label for score in record.scores] == ["rouge1", "rouge2", "rougeL", "tokens_per_sample", "gsm8k"]
    assert list(record.unscored) == ["mbxp_accuracy"]
    lacks = lacks_of(SCORERS["rouge-gsm8k-mbxp"]).get("mbxp", ["its grader was not made ready (get,mlperf,grader)"])
    assert record.unscored["mbxp_accuracy"] == "; ".join(lacks)
    lines = (folder / "accuracy.txt").read_text(encoding="utf-8").splitlines()
    assert lines[-1] == f"Not scored: mbxp_accuracy: {record.unscored['mbxp_accuracy']}"
    assert not any("mbxp" in line for line in lines[:-1])


def test_a_metric_without_samples_is_named_as_well(accuracy_run):
    folder = accuracy_run.write(["10"], [(0, "ten")], columns=[{"dataset": "GSM8K"}])
    accuracy_run.change(terms=TERMS)
    record = score_run(folder)
    assert [score.label for score in record.scores] == ["tokens_per_sample", "gsm8k"]
    assert record.unscored["ROUGE1"] == "none of the run's samples is scored by it"
    assert record.verified == 0
