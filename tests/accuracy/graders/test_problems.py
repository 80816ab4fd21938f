"""LiveCodeBench's problems: read once, found by their id, and programs judged by their tests."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from square_problems import write_problems

from cm4vllm.accuracy.graders.catalogue import GRADERS, grader_lacks
from cm4vllm.accuracy.graders.judging import judge, provide
from cm4vllm.accuracy.graders.problems import index_problems, problem, require_problem_files
from cm4vllm.accuracy.graders.sandbox import sandbox_lacks
from cm4vllm.accuracy.metric_families import Samples, parts_of_deepseek, parts_of_gpt_oss
from cm4vllm.accuracy.scoring import SCORERS, graders_of, lacks_of
from cm4vllm.accuracy.sentences import NO_SENTENCES
from cm4vllm.common.errors import DatasetError, UsageError

RECIPE = Path(__file__).resolve().parents[3] / "script" / "get-mlperf-grader"
FILES = GRADERS["livecodebench_v6"].problems


def test_the_files_of_each_release():
    assert GRADERS["livecodebench"].problems == ("test.jsonl",)
    assert FILES == ("test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl", "test6.jsonl")


def test_each_problem_is_found_as_it_stands_in_its_file(tmp_path):
    write_problems(tmp_path, FILES)
    index = index_problems(tmp_path, FILES)
    assert list(index.places) == [f"{kind}{number}" for number in range(6) for kind in ("stdin", "method")]
    assert json.loads(problem(index, "method4"))["metadata"] == '{"func_name": "square"}'
    assert problem(index, "unknown") == ""


def test_files_that_are_missing_changed_or_none_are_refused(tmp_path):
    write_problems(tmp_path, FILES[:2])
    with pytest.raises(UsageError, match=r"has no test3\.jsonl") as refused:
        require_problem_files(tmp_path, FILES[:3])
    assert "hf download livecodebench/code_generation_lite" in refused.value.remedy
    for given, cause in ((tmp_path / "gone", "does not exist"), (tmp_path / "test.jsonl", "is a file")):
        with pytest.raises(UsageError, match="is not usable") as refused:
            require_problem_files(given, FILES[:1])
        assert cause in refused.value.cause and "hf download" in refused.value.remedy
    index = index_problems(tmp_path, FILES[:2])
    path = tmp_path / "test2.jsonl"
    path.write_bytes(path.read_bytes().replace(b"stdin1", b"stdin9"))
    with pytest.raises(DatasetError, match=r"test2\.jsonl has changed"):
        problem(index, "stdin1")
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DatasetError, match=r"line 1 of .*test2\.jsonl is no problem of LiveCodeBench"):
        index_problems(tmp_path, FILES[:2])
    with pytest.raises(DatasetError, match="is no problem"):
        problem(index, "stdin1")
    path.unlink()
    with pytest.raises(DatasetError, match="cannot be read"):
        problem(index, "stdin1")


@pytest.mark.parametrize("name", ["deepseek-r1", "gpt-oss"])
def test_the_whole_is_scored_where_the_tests_are_given(name, tmp_path):
    if why := sandbox_lacks():
        pytest.skip(why)
    (why,) = lacks_of(SCORERS[name])["exact_match"]
    assert "--livecodebench_path" in why
    assert lacks_of(SCORERS[name], str(tmp_path)) == {}
    with_tests, without = (set(graders_of(SCORERS[name], given)) for given in (str(tmp_path), ""))
    assert with_tests - without == {"livecodebench" if name == "deepseek-r1" else "livecodebench_v6"}


@pytest.fixture(scope="module", params=["livecodebench", "livecodebench_v6"])
def ready(request, tmp_path_factory):
    """A grader with problems of the tests' own; its known answers were judged as they should be."""
    sources = os.environ.get("GRADER_SOURCES")
    if not sources:
        pytest.skip("GRADER_SOURCES names no folder with git directories of inference and LiveCodeBench")
    folder = tmp_path_factory.mktemp(request.param)
    write_problems(folder / "tests", GRADERS[request.param].problems)
    if why := grader_lacks(request.param, str(folder)):
        pytest.skip("; ".join(why))
    return provide(request.param, folder, RECIPE, Path(sources), folder / "tests")


SQUARE = {
    "stdin0": "n = int(input())\nprint({})",
    "method0": "class Solution:\n    def square(self, n: int) -> int:\n        return {}",
}


@pytest.mark.long
def test_the_official_script_judges_programs_by_all_their_tests(ready, capsys):
    forms = [(key, text.format(result)) for key, text in SQUARE.items() for result in ("n * n", "2 * n", "1 / 0")]
    forms += [("stdin0", "import os\nos._exit(0)"), ("unknown", "print(1)")]
    tasks = [{"question_id": key, "response": f"So:\n```python\n{code}\n```"} for key, code in forms]
    verdicts = judge(ready, [*tasks, {"question_id": "stdin0", "response": "I do not know."}])
    assert [verdict.right for verdict in verdicts] == [True, False, False, True, False, False, False, False, False]
    assert not any(verdict.held for verdict in verdicts)
    assert verdicts[-1].why == "no program in the answer"
    assert "1 of 9 questions are not in test.jsonl" in capsys.readouterr().out


@pytest.mark.long
def test_exact_match_covers_programs(ready):
    scorer = {"livecodebench": parts_of_deepseek, "livecodebench_v6": parts_of_gpt_oss}[ready.name]
    good, bad = (f"```python\n{SQUARE['stdin0'].format(result)}\n```" for result in ("n * n", "n"))
    rows = [{"dataset": ready.name, "output": "stdin0"}] * 2 + [{"dataset": "gpqa", "output": "C"}] * 2
    samples = Samples([good, bad, "Answer: C", "Answer: C"], rows, NO_SENTENCES, graders={ready.name: ready})
    weight = 1 if ready.name == "livecodebench" else 3
    values = scorer(samples).values
    assert values["livecodebench"] == 50.0
    assert values["exact_match"] == round(100 * (1 / weight + 2) / (2 / weight + 2), 3)
    assert "exact_match" not in scorer(replace(samples, graders={})).values
