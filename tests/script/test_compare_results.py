"""Results compared as a user compares them."""

import json

from cm4vllm.common.errors import UsageError


def test_two_published_systems_side_by_side(cm, neural_magic, tmp_path):
    systems = [str(path) for path in sorted((neural_magic / "results").glob("4xH100*"))]
    done = cm(
        "run",
        "script",
        "--tags=compare,mlperf,results",
        f"--input={','.join(systems)}",
        "--out=json",
        "--quiet",
        f"--comparison_page={tmp_path}/page.html",
    )
    assert done.code == 0, done.output
    answer = json.loads(done.output[done.output.index("{\n") : done.output.rindex("}") + 1])
    assert [side["name"] for side in answer["new_state"]["comparison"]["sides"]] == ["A", "B"]
    assert "weight data types" in (tmp_path / "page.html").read_text()


def test_a_missing_input_is_asked_for(cm):
    cm("run", "script", "--tags=compare,mlperf,results", "--quiet").refused_with(UsageError.exit_code, "--input=")
