"""rerun.yaml: files that are no capsule, or one of another schema, are refused with the remedy."""

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.results.capsule import Capsule
from cm4vllm.submission.capsule.rerun_file import read_capsule


def test_a_file_that_is_no_capsule_is_refused(tmp_path):
    for text in ("schema: 99\n", "- a\n", "a: [", "schema: 2\nround: 3\n", "schema: 2\nmodel: {}\nresults: 3\n"):
        (tmp_path / "rerun.yaml").write_text(text)
        with pytest.raises(UsageError, match="not a capsule"):
            read_capsule(tmp_path / "rerun.yaml")
    with pytest.raises(UsageError, match="cannot read"):
        read_capsule(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read the capsule"),
        ("\0", "is not a capsule"),
        ("round: [", "is not a capsule"),
        ("round: v6.1", "of this version"),
        ("schema: {schema}\nround: 6", "is not a capsule"),
    ],
    ids=["missing", "binary", "cut", "of another version", "without its fields"],
)
def test_a_damaged_capsule_is_refused_with_what_to_do(text, words, tmp_path):
    path = tmp_path / "rerun.yaml"
    if text is not None:
        path.write_text(text.format(schema=Capsule.SCHEMA))
    with pytest.raises(UsageError, match=words) as refused:
        read_capsule(path)
    assert refused.value.cause and refused.value.remedy


def test_a_capsule_of_the_schema_before_is_refused_by_its_number(tmp_path):
    (tmp_path / "rerun.yaml").write_text("schema: 1\nround: v6.1\nruns: []\n")
    with pytest.raises(UsageError, match="of this version") as refused:
        read_capsule(tmp_path / "rerun.yaml")
    assert refused.value.cause == "it has schema 1, this version reads schema 2"
    assert "generate,mlperf,capsule" in refused.value.remedy


def references(levels):
    """Return YAML of some hundred bytes that stands for 2**levels values."""
    return "p0: &p0 [x, x]\n" + "".join(f"p{n}: &p{n} [*p{n - 1}, *p{n - 1}]\n" for n in range(1, levels))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 10**5, "nested too deep"),
        ("- " * 10**5, "nested too deep"),
        (references(30), "stands for more than 250,000 values"),
        ("a: &a {b: *a}\n", "refers to a part of itself, or to none: *a"),
        (f"a: {'9' * 6000}\n", "a number of 6,000 characters"),
    ],
    ids=["deep", "deep-list", "references", "loop", "number"],
)
def test_a_file_made_to_end_its_reader_is_refused(tmp_path, text, why):
    """Before, libyaml overflowed its stack, which ended the process without a message."""
    (tmp_path / "rerun.yaml").write_text(text)
    with pytest.raises(UsageError, match="is not a capsule") as refused:
        read_capsule(tmp_path / "rerun.yaml")
    assert why in refused.value.cause
