"""Exact matches and their means are those of the reference script of llama3.1-405b, which runs beside ours."""

import ast
import json
import random
import re
import string
import sys
import uuid
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from nltk.tokenize.punkt import PunktSentenceTokenizer
from rouge_score import rouge_scorer

from cm4vllm.accuracy.exact_match import is_solved, number_in, percent_answered, percent_retrieved
from cm4vllm.accuracy.metric_families import Samples, rouge_and_exact_match, rouge_gsm8k_and_mbxp
from cm4vllm.accuracy.rouge import TYPES
from cm4vllm.accuracy.scoring import SCORERS, accuracy_text, lacks_of, score_run, scorer_of
from cm4vllm.accuracy.sentences import Sentences
from cm4vllm.campaign.kept_results import kept_result
from cm4vllm.campaign.planning.step_environment import StepEnvironment
from cm4vllm.campaign.planning.steps import Product, Step
from cm4vllm.rules import Mode, Scenario, terms

COMMIT = "b66003e1"
SCRIPT = "language/llama3.1-405b/evaluate-accuracy.py"
UNTRAINED = Sentences("punkt-untrained")
TERMS = terms("v6.0", "llama3.1-405b", Scenario.OFFLINE, Mode.ACCURACY)
WORDS = [*"the ship from Riga landed 40 tons of salt. Monday! Answer: | silk_1 São ß Á".split(), "", "\n"]


@pytest.fixture(scope="module")
def reference(official_file):
    """The functions and constants of the reference script, at the commit that its numbers are from."""

    import pandas as pd

    # Without its imports, of which transformers and tqdm are not installed here, and without its main program.
    tree = ast.parse(official_file(COMMIT, SCRIPT))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.Assign)]
    names = {
        "re": re,
        "np": np,
        "pd": pd,
        "rouge_scorer": rouge_scorer,
        "nltk": SimpleNamespace(sent_tokenize=PunktSentenceTokenizer().tokenize),
    }
    exec(compile(tree, SCRIPT, "exec"), names)
    return SimpleNamespace(**names)


def text(draw, words=12):
    return " ".join(draw.choices(WORDS, k=draw.randint(0, words)))


def codes(draw, known):
    """Return a text with none to three codes, known ones among them, some of them in capitals or changed."""
    parts = []
    for _ in range(draw.randint(0, 3)):
        code = draw.choice(known)
        if draw.random() < 0.3:
            code = code.upper()
        if draw.random() < 0.4:
            at = draw.randrange(len(code))
            code = code[:at] + draw.choice(string.hexdigits + "_-") + code[at + 1 :]
        parts += [text(draw, 3), code]
    return " ".join(parts)


def cases(count, seed):
    """Return (prediction, reference, metric), as likely right as wrong."""
    draw = random.Random(seed)
    known = [str(uuid.UUID(int=draw.getrandbits(128))) for _ in range(6)]
    drawn = []
    for _ in range(count):
        metric = draw.choice(["rouge", "niah_em", "qa_em"])
        if metric == "niah_em":
            drawn.append((codes(draw, known), codes(draw, known), metric))
            continue
        reference = "|".join(text(draw, 4) for _ in range(draw.randint(1, 3))) if metric == "qa_em" else text(draw)
        prediction = text(draw)
        if draw.random() < 0.5:
            prediction = f"{prediction} {draw.choice(['Answer: ', ''])}{draw.choice(reference.split('|')).upper()}"
        drawn.append((prediction, reference, metric))
    return drawn


def test_each_match_is_the_references(reference):
    seen = set()
    for prediction, wanted, _ in cases(6000, 1):
        for ours, theirs in ((percent_answered, reference.qa_em), (percent_retrieved, reference.niah_em)):
            value = ours(prediction, wanted)
            assert value == theirs(wanted, prediction)["exact_match"], (prediction, wanted)
            seen.add((ours, value))
    assert {
        (percent_answered, 0.0),
        (percent_answered, 100.0),
        (percent_retrieved, 0.0),
        (percent_retrieved, 100.0),
    } < seen
    assert len(seen) > 8  # codes that are right in part, too


@pytest.mark.parametrize("seed", range(3))
def test_the_means_are_the_references_to_the_last_bit(reference, seed):
    import pandas as pd

    drawn = cases(500, seed)
    rows = [{"output": wanted, "metric": metric} for _, wanted, metric in drawn]
    predictions = [prediction for prediction, _, _ in drawn]
    ours = rouge_and_exact_match(Samples(predictions, rows, UNTRAINED, workers=1))
    texts, wanted = reference.postprocess_text(predictions, [row["output"] for row in rows])
    metrics = [row["metric"] for row in rows]
    scores = [reference.process_item(item) for item in zip(texts, wanted, metrics, strict=True)]
    table = pd.DataFrame({"accuracy": scores, "metric": metrics})  # the last lines of run_evaluation
    assert ours.values == table.accuracy.apply(pd.Series).describe().loc["mean"].to_dict()
    assert ours.characters == sum(map(len, texts))


@pytest.mark.parametrize(
    ("prediction", "wanted", "value"),
    [
        ("It is Riga. Answer: Oslo", "Oslo|Riga", 100.0),
        ("Answer: Riga Answer: Kiel", "Oslo|Riga", 0.0),
        ("the port of R I G A", "Oslo|riga", 100.0),
        ("", "Oslo", 100.0),
        ("Bergen", "Oslo|Riga", 0.0),
    ],
)
def test_an_answer_counts_by_what_follows_the_last_answer(prediction, wanted, value):
    assert percent_answered(prediction, wanted) == value


def test_codes_are_compared_by_place():
    first, second = (str(uuid.UUID(int=number << 96 | number)) for number in (0x11111111, 0x22222222))
    assert percent_retrieved(f"{first} and {second}", f"{first} {second}") == 100.0
    assert percent_retrieved("none", first) == 0.0
    assert percent_retrieved(f"{first} {second}", first) == 50.0  # one too many
    assert 0 < percent_retrieved(second, first) < 100  # zeros and dashes are in both


def test_a_run_of_both_metrics_is_scored_and_written_as_the_checker_reads_it(accuracy_run):
    outputs = ["the ship from Riga landed", "ten tons|salt", "12345678-1234-1234-1234-123456789012"]
    kinds = [{"metric": metric} for metric in ("rouge", "qa_em", "niah_em")]
    answers = list(enumerate(["the ship from Oslo landed", "ten tons of salt", "silk"]))
    folder = accuracy_run.write(outputs, answers, columns=kinds)
    accuracy_run.change(terms=TERMS)
    record = score_run(folder)
    assert record.values["rougeL"] == pytest.approx(80.0)
    assert record.values["exact_match"] == 50.0
    assert record.values["tokens_per_sample"] == round(record.tokens / 3, 1)
    assert [score.label for score in record.scores] == ["rougeL", "exact_match", "tokens_per_sample"]
    assert record.scorer.endswith(", rouge-score 0.1.2")
    written = (folder / "accuracy.txt").read_text(encoding="utf-8")
    for label, pattern in (
        ("rougeL", r".*'rougeL':\s+'?([\d.]+)'?.*"),
        ("exact_match", r".*'exact_match':\s([\d.]+).*"),
        ("tokens_per_sample", r".*'tokens_per_sample':\s([\d.]+).*"),
    ):
        values = [m[1] for line in written.splitlines() if (m := re.match(pattern, line))]
        assert [float(value) for value in values] == [record.values[label]]
    assert written == accuracy_text(
        record.values | {"gen_len": sum(len(text) for _, text in answers), "gen_num": 3, "gen_tok_len": record.tokens},
        scorer_of(TERMS),
    )


@pytest.mark.parametrize("change", [lambda path: path.write_text("{'exact_match': 100.0}"), Path.unlink])
def test_scores_are_kept_with_the_text_that_was_written_alone(accuracy_run, change):
    folder = accuracy_run.write(["ten tons|salt"], [(0, "ten tons of salt")], columns=[{"metric": "qa_em"}])
    accuracy_run.change(terms=TERMS)
    score_run(folder)
    step, env = Step(name="scores", tags="", product=Product.SCORES), {"CM_MLPERF_ACCURACY_RESULTS_DIR": str(folder)}
    known = kept_result(step, step.inputs, StepEnvironment(env), "").digest
    assert kept_result(step, step.inputs, StepEnvironment(env), known).exports
    change(folder / "accuracy.txt")
    assert kept_result(step, step.inputs, StepEnvironment(env), known).exports is None


# --- scores of mixtral-8x7b are those of its reference script, whose main program runs beside ours


SCRIPT_MIXTRAL = "language/mixtral-8x7b/evaluate-accuracy.py"
TERMS_MIXTRAL = terms("v6.0", "mixtral-8x7b", Scenario.OFFLINE, Mode.ACCURACY)
#: Answers are made of these parts: numbers in many spellings, and texts that the script treats differently.
PARTS = [
    *"the ship|landed|40|-7|1,200|5,6,00|.5|3.|0.25|00018|The answer is|The answer is 12|\nQ:|Q:|$18|18%|1.2.3".split(
        "|"
    ),
    *",,|,7|-|--4|٣|1e3|inf|nan||\n|.|São".split("|"),
    "7" * 400,
]
REFERENCES = ["40", "-7", "1200", "0.5", "3", "0.25", "18", "12", "18.0", "5600", "1,200", "x", "", "nan", "inf", "3.0"]


@pytest.fixture(scope="module")
def reference_mixtral(printed_by):
    """The main program of the reference script: the numbers that it prints for rows and answers."""

    import pandas as pd

    class CodePoints:
        """In the place of the model's tokenizer: a token is a character."""

        def batch_decode(self, answers, skip_special_tokens):
            return [self.decode(answer, skip_special_tokens) for answer in answers]

        def decode(self, answer, skip_special_tokens):
            return "".join(map(chr, answer))

    def printed(folder, rows, answers):
        pd.DataFrame(rows).rename(columns={"output": "gt_output"}).to_pickle(folder / "dataset.pkl")
        entries = [
            {"qsl_idx": n, "data": np.array(list(map(ord, text)), np.int64).tobytes().hex()}
            for n, text in enumerate(answers)
        ]
        (folder / "log.json").write_text(json.dumps(entries))
        programs = ModuleType("evaluate_mbxp")
        programs.evaluate_mbxp = lambda results, workers: -1.0
        files = [f"--dataset-file={folder / 'dataset.pkl'}", f"--mlperf-accuracy-file={folder / 'log.json'}"]
        tokenizer = SimpleNamespace(from_pretrained=lambda *_, **__: CodePoints())
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "evaluate_mbxp", programs)
            return printed_by(
                COMMIT, SCRIPT_MIXTRAL, ["--checkpoint-path=x", *files], re=re, pd=pd, AutoTokenizer=tokenizer
            )

    return printed


def cases_mixtral(count, seed):
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


def test_the_numbers_are_those_that_the_reference_prints(reference_mixtral, tmp_path):
    rows, answers = cases_mixtral(6000, 1)
    ours = rouge_gsm8k_and_mbxp(Samples(answers, rows, UNTRAINED, workers=1))
    theirs = reference_mixtral(tmp_path, rows, answers)
    assert theirs.pop("mbxp") == -1.0  # it ran what stands in its place
    assert {**ours.values, "gen_len": ours.characters} == {key: theirs[key] for key in (*TYPES, "gsm8k", "gen_len")}
    assert 10 < ours.values["gsm8k"] < 80


def test_each_answer_to_a_problem_is_judged_as_the_reference_does(reference_mixtral, tmp_path):
    draw = random.Random(2)
    kinds = set()
    for _ in range(60):  # small sets, so that no two errors cancel out
        texts = [" ".join(draw.choices(PARTS, k=draw.randint(0, 5))) for _ in range(2)]
        rows = [{"id": "a", "input": "x", "output": draw.choice(REFERENCES), "dataset": "GSM8K"} for _ in texts]
        right = [is_solved(text, row["output"]) for text, row in zip(texts, rows, strict=True)]
        assert reference_mixtral(tmp_path, rows, texts)["gsm8k"] == 50.0 * sum(right), (texts, rows)
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


def test_a_run_names_the_metrics_that_are_not_scored_or_have_no_samples(accuracy_run):
    kinds = ["OpenOrca", "GSM8K", "MBXP", "GSM8K"]
    wanted = ["the ship from Riga landed", "10", "assert f() == 1", "7"]
    answers = list(enumerate(["the ship from Oslo landed", "salt", "ten", "tons"]))
    folder = accuracy_run.write(wanted, answers, columns=[{"dataset": kind} for kind in kinds])
    accuracy_run.change(terms=TERMS_MIXTRAL)
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
    folder = accuracy_run.write(["10"], [(0, "ten")], columns=[{"dataset": "GSM8K"}])
    accuracy_run.change(terms=TERMS_MIXTRAL)
    record = score_run(folder)
    assert [score.label for score in record.scores] == ["tokens_per_sample", "gsm8k"]
    assert record.unscored["ROUGE1"] == "none of the run's samples is scored by it"
    assert "rouge-score" not in record.scorer
