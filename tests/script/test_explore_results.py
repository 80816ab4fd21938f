"""Published results explored as a user explores them."""

from cm4vllm.common.errors import SubmissionError, UsageError


def test_a_page_is_made_of_a_repository(cm, neural_magic, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = cm(
        "run",
        "script",
        "--tags=explore,mlperf,results",
        f"--input={neural_magic.parents[1]}",
        "--quiet",
        f"--explorer_page={tmp_path}/page.html",
    )
    assert done.code == 0, done.output
    assert "results: 10; submitters: 1; folders of submitters read now: 1, kept from an earlier run: 0" in done.output
    assert (tmp_path / "page.html").read_text().count('<tr><th scope="row">') == 10
    assert len(list((tmp_path / "cache" / "cm4vllm" / "published").iterdir())) == 1


def test_wrong_inputs_are_refused(cm, tmp_path):
    cm("run", "script", "--tags=explore,mlperf,results", "--quiet").refused_with(UsageError.exit_code, "--input=")
    cm("run", "script", "--tags=explore,mlperf,results", f"--input={tmp_path}", "--quiet").refused_with(
        SubmissionError.exit_code, "no published results"
    )
