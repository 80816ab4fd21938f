"""Letters and numbers are found as the reference scripts of deepseek-r1 and gpt-oss-120b find them, beside ours."""

import ast
import random
import re
from types import SimpleNamespace
from typing import Any

import pytest

from cm4vllm.accuracy.exact_match import chosen_at_the_end, chosen_letter, integer, is_choice, is_integer
from cm4vllm.accuracy.metric_families import Samples, parts_of_deepseek, parts_of_gpt_oss
from cm4vllm.accuracy.scoring import score_run
from cm4vllm.accuracy.sentences import NO_SENTENCES
from cm4vllm.rules import Mode, Scenario, terms

COMMIT = "b66003e1"
DEEPSEEK, GPT_OSS = (f"language/{name}/eval_accuracy.py" for name in ("deepseek-r1", "gpt-oss-120b"))
#: Answers are made of these parts: announcements in many spellings, and texts that the scripts treat differently.
PARTS = [
    *"Answer:|ANSWER|FINAL ANSWER|FINALANSWER:|Final  answer =|answer|A|b|(C)|( D )|E|J|K|A.|Bx|**D**|**".split("|"),
    *"Answer: 42|answer: 7.5|Answer: 999.|I|a port|\n|\\n|\\'|['|']|[\"|\"]|٣|Answer:٣|.|,|São".split("|"),
    *(f"\\boxed{number}" for number in ("{12}", "{ 1000 }", "{7", "{7}", "{x}")),
    "boxed{3}",
    *(f"<|channel|>{name}<|message|>" for name in ("analysis", "final", "final 5")),
    *"<|return|> <|end|>".split(),
]
LETTERS = ["A", "b", "C", "D", "E", "j", "K", "", "AB"]
NUMBERS = ["42", "7", "12", "0", "999", "1000", "x", "", " 3 ", "1e3"]


@pytest.fixture(scope="module")
def references(official_file):
    """The functions of both reference scripts, at the commit that their numbers are from."""

    import pandas as pd

    modules = []
    for script in (DEEPSEEK, GPT_OSS):
        # Without its imports, and without what runs programs and grades mathematics.
        tree = ast.parse(official_file(COMMIT, script))
        tree.body = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
            and re.match("validate_text|extract|strip|parse|evaluate_(multiple|aime)", node.name)
        ]
        names: dict[str, Any] = {"re": re, "pd": pd, "Any": Any, "Optional": __import__("typing").Optional}
        exec(compile(tree, script, "exec"), names)
        modules.append(SimpleNamespace(**names))
    return modules


def texts(count, seed):
    draw = random.Random(seed)
    for _ in range(count):
        yield draw.choice(["", " "]).join(draw.choices(PARTS, k=draw.randint(0, 7)))


@pytest.mark.parametrize("letters", ["ABCD", "ABCDEFGHIJ"])
def test_each_letter_is_the_references(references, letters):
    for ours, theirs in zip((chosen_letter, chosen_at_the_end), references, strict=True):
        values = set()
        for text in texts(8000, 1):
            value = ours(text, letters)
            assert value == theirs.parse_multiple_choice(text, letters[-1]), text
            values.add(value)
            for wanted in LETTERS:
                assert is_choice(value, wanted, letters) == theirs.evaluate_multiple_choice(value, wanted, letters)
        assert {None, *letters[:4]} <= values


def test_each_number_is_the_references(references):
    values = set()
    for text in texts(8000, 2):
        value = integer(text)
        values.add(value)
        for theirs in references:
            assert value == theirs.parse_aime_answer(text), text
            for wanted in NUMBERS:
                assert is_integer(value, wanted) == theirs.evaluate_aime(value, wanted)
    assert {None, 3, 7, 12, 42} <= values


@pytest.mark.parametrize(
    ("find", "text", "answer"),
    [
        (chosen_letter, "Answer: A. No: answer = D", "D"),
        (chosen_letter, "the answer is A", None),
        (chosen_letter, "['Answer: A']", "A"),
        (
            chosen_at_the_end,
            "<|channel|>analysis<|message|>Answer: A<|end|><|channel|>final<|message|>**C**<|return|>",
            "C",
        ),
        (chosen_at_the_end, "<|channel|>final<|message|>It is so. Answer: B", "B"),
        (integer, "Answer: 3, \\boxed{4} and \\boxed{ 42 }", 42),
        (integer, "Answer: 5\nanswer: 6", 6),
        (integer, "Answer: 7.5", None),
        (integer, f"\\boxed{{{'9' * 5000}}}", None),
    ],
)
def test_the_answer_of_a_text(find, text, answer):
    assert find(text, *(["ABCD"] if find is not integer else [])) == answer


def test_each_dataset_has_a_score_of_its_own():
    cases = [
        ("gpqa", "Answer: A", "A"),
        ("GPQA", "Answer: A", "B"),
        ("mmlu_pro", "it is J", "j"),
        ("aime1983", "Answer: 7", "7"),
        ("math500", "\\boxed{1}", "1"),
        ("livecodebench", "```python\n1\n```", "x"),
        ("aime", "Answer: 8", "7"),
    ]
    rows = [{"dataset": name, "output": wanted} for name, _, wanted in cases]
    scored = parts_of_deepseek(Samples([text for _, text, _ in cases], rows, NO_SENTENCES))
    assert scored.values == {"gpqa": 50.0, "mmlu_pro": 100.0, "aime": 50.0}
    rows = [{"dataset": name, "output": wanted} for name, wanted in (("gpqa_diamond", "C"), ("livecodebench_v6", "x"))]
    assert parts_of_gpt_oss(Samples(["**C**", "C"], rows, NO_SENTENCES)).values == {"gpqa": 100.0}


@pytest.mark.parametrize("benchmark", ["deepseek-r1", "gpt-oss-120b"])
def test_a_run_shows_its_parts_and_says_why_the_whole_is_not_scored(accuracy_run, benchmark):
    run_terms = terms("v6.1", benchmark, Scenario.OFFLINE, Mode.ACCURACY)
    folder = accuracy_run.write(
        ["A", "x"],
        [(0, "ten"), (1, "salt")],
        sentences="punkt_tab",  # which is not needed
        columns=[{"dataset": "gpqa_diamond"}, {"dataset": "livecodebench_v6"}],
    )
    accuracy_run.change(terms=run_terms)
    record = score_run(folder, nltk_data="/nowhere")
    assert [score.metric for score in record.scores] == ["TOKENS_PER_SAMPLE"]
    assert "LiveCodeBench" in record.unscored["exact_match"]
    assert record.values["gpqa"] == 0.0 and "gen_len" not in record.values
    assert "rouge" not in record.scorer
    assert "'exact_match'" not in (folder / "accuracy.txt").read_text(encoding="utf-8")


def test_the_whole_of_gpt_oss_is_weighted_by_how_often_a_question_is_asked():
    cases = [("gpqa_diamond", "**C**", "C"), ("gpqa_diamond", "**C**", "D"), ("aime25", "\\boxed{7}", "7")]
    rows = [{"dataset": name, "output": wanted} for name, _, wanted in cases]
    texts = [text for _, text, _ in cases]
    scored = parts_of_gpt_oss(Samples(texts, rows, NO_SENTENCES))
    assert scored.values["exact_match"] == round(100 * (1 / 5 + 1 / 8) / (2 / 5 + 1 / 8), 3) == 61.905
    # One dataset of another name, as that of TEST07: every answer counts once.
    rows = [{"dataset": "gpqa-compliance-dataset", "output": wanted} for wanted in "CCD"]
    assert parts_of_gpt_oss(Samples(["**C**"] * 3, rows, NO_SENTENCES)).values["exact_match"] == 66.667
