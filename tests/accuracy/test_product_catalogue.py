"""The F1 of product categories, against the reference's own functions and the pydantic that it reads answers with."""

import ast
import json
import random
import subprocess

import pytest

from cm4vllm.accuracy.product_catalogue import category_of, hierarchical_f1
from cm4vllm.accuracy.scoring import score_run
from cm4vllm.common.errors import RunFailed
from cm4vllm.results.log_folders import scores_of

COMMIT, FOLDER = "b66003e1", "multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl"
LEVELS = ("Home", "Garden", "Tools > ", "a", " a ", "b", "", ">", "Kitchen & Bath", "é", "\U0001f600")


def answer(category="Home > Red", brand="Fenwick", secondhand=False):
    return json.dumps({"category": category, "brand": brand, "is_secondhand": secondhand})


@pytest.mark.parametrize(
    ("said", "f1"),
    [
        ("Home > Red > Chair", 1),
        ("Home > Red > Table", 2 / 3),
        ("Home > Blue > Chair", 1 / 3),
        ("Garden > Red > Chair", 0),
        ("Home", 1 / 2),  # precision 1, recall 1/3
        (" Home  >  Red > Chair ", 1),
    ],
)
def test_levels_count_from_the_first_on(said, f1):
    assert hierarchical_f1([(answer(said), "Home > Red > Chair")]) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("text", "category"),
    [
        (answer(), "Home > Red"),
        (answer(secondhand="Yes"), "Home > Red"),
        (answer(secondhand=1.0), "Home > Red"),
        (answer(secondhand=2), None),
        (answer(secondhand="perhaps"), None),
        (answer(brand=None), None),
        ('{"category": "a", "brand": "b"}', None),
        ('{"category": "a", "brand": "b", "is_secondhand": true, "more": 1}', None),
        (f"```json\n{answer()}\n```", None),
        (f" {answer()}\n", "Home > Red"),
        ("", None),
        ("[]", None),
    ],
)
def test_what_pydantic_refuses_has_no_category(text, category):
    assert category_of(text) == category


def generated(count):
    """Yield pairs of an answer and the right category: right, half right, and damaged in many ways."""
    draw = random.Random(7)
    values = (True, False, 0, 1, 2, 0.0, 1.0, 0.5, "true", "OFF", "t", "maybe", " yes", None, [], {}, -1, 10**30)
    for _ in range(count):
        right = " > ".join(draw.choice(LEVELS) for _ in range(draw.randint(1, 5)))
        said = right if draw.random() < 0.4 else " > ".join(draw.choice(LEVELS) for _ in range(draw.randint(1, 5)))
        fields = {"category": said, "brand": draw.choice(["a", "", 3, None]), "is_secondhand": draw.choice(values)}
        if draw.random() < 0.6:
            fields |= {"brand": "a", "is_secondhand": draw.random() < 0.5}
        if draw.random() < 0.1:
            fields[draw.choice(("more", "category"))] = draw.choice(["x", 1])
        text = json.dumps(fields, ensure_ascii=draw.random() < 0.5)
        if draw.random() < 0.15:
            at = draw.randint(0, len(text))
            text = (
                text[:at] + draw.choice(["", "}", "\\ud800", "\n", '"', "NaN", ","]) + text[at + draw.randint(0, 2) :]
            )
        yield text, right


@pytest.fixture(scope="module")
def reference(official_file):
    """The reference's functions of the score, which need none of its packages."""
    wanted = {"get_hierarchical_components", "calculate_hierarchical_f1"}
    tree = ast.parse(official_file(COMMIT, f"{FOLDER}/evaluation.py"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    module = {"_CATEGORY_SEPARATOR": " > "}
    exec(compile(ast.Module(functions, []), "evaluation.py", "exec"), module)
    return module["calculate_hierarchical_f1"]


def test_it_is_the_references_to_the_last_bit(reference):
    pairs = list(generated(6000))
    pad = "<|__PRED_CATEGORY_PAD__|>"
    theirs = []
    for text, right in pairs:
        category = category_of(text)
        theirs.append((" > ".join([pad] * len(right.split(" > "))) if category is None else category, right))
    assert hierarchical_f1(pairs) == reference(theirs)
    for pair, pair_of_paths in zip(pairs, theirs, strict=True):
        assert hierarchical_f1([pair]) == reference([pair_of_paths]), pair
    assert 1000 < sum(category_of(text) is None for text, _ in pairs) < 5000


@pytest.mark.e2e
@pytest.mark.xdist_group("vllm-2")
def test_answers_are_read_as_the_references_pydantic_reads_them(vllm_python, official_file, tmp_path):
    source = official_file(COMMIT, f"{FOLDER}/schema.py")
    tree = ast.parse(source)
    wanted = {"BaseModelWithAttributeDescriptionsFromDocstrings", "ProductMetadata"}
    parts = [ast.get_source_segment(source, node) for node in tree.body if getattr(node, "name", "") in wanted]
    (tmp_path / "schema.py").write_text("from pydantic import BaseModel, ConfigDict\n" + "\n\n".join(parts) + "\n")
    program = (
        "import json, sys; from pydantic import ValidationError; from schema import ProductMetadata as P\n"
        "def read(text):\n"
        "    try: return P.model_validate_json(text).category\n"
        "    except ValidationError: return None\n"
        "schema = json.dumps(P.model_json_schema(), indent=2)\n"
        "print(json.dumps([[read(text) for text in json.load(sys.stdin)], schema]))"
    )
    texts = [text for text, _ in generated(6000)]
    done = subprocess.run(
        [vllm_python, "-c", program], cwd=tmp_path, input=json.dumps(texts), text=True, capture_output=True, check=True
    )
    theirs, schema = json.loads(done.stdout)
    assert [category_of(text) for text in texts] == theirs
    from cm4vllm.rules import chat_prompts

    assert schema in chat_prompts()[0].system


def test_a_run_whose_log_has_text_is_scored_as_the_reference_writes_it(accuracy_run):
    said = [(0, answer("Home > Red > Chair")), (1, answer("Home > Red > Table")), (2, "no JSON, é")]
    wanted = ["Home > Red > Chair"] * 3
    folder = accuracy_run.write(
        wanted,
        said,
        benchmark="qwen3-vl-235b-a22b",
        data=lambda text: text.encode(),
        media_folder=str(accuracy_run.folder),
    )
    record = score_run(folder)
    (score,) = record.scores
    assert (score.metric, score.value, score.met) == ("F1_HIERARCHICAL", pytest.approx(5 / 9), False)
    assert (folder / "accuracy.txt").read_text() == f'Results\n\n{{"f1": {score.value!r}}}\n'
    assert scores_of(folder / "accuracy.txt") == {"f1": score.value}


def test_answers_that_are_no_text_are_refused(accuracy_run):
    folder = accuracy_run.write(["a"], [(0, "a")], benchmark="qwen3-vl-235b-a22b", data=lambda text: b"\xff\xfe")
    with pytest.raises(RunFailed, match="no UTF-8 text"):
        score_run(folder)
