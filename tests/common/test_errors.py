"""The error tree: its texts, its exit codes, and the message of a nested failure."""

import errno
from pathlib import Path

import pytest

from cm4vllm.common import errors
from cm4vllm.common.errors import CmError, DiskFull, NotWritable, ServerDied, nearest, translated_os_errors
from exit_codes_page import exit_codes, exit_codes_page


def test_text_names_what_cause_and_remedy():
    error = CmError("the oven is cold", cause="no gas\nno wood", remedy="buy some")
    assert str(error).splitlines() == [
        "the oven is cold",
        "  cause:  no gas",
        "          no wood",
        "  remedy: buy some",
    ]


def kinds():
    members = vars(errors).values()
    return [kind for kind in members if isinstance(kind, type) and issubclass(kind, CmError)]


def test_a_nested_failure_keeps_its_kind_and_its_code():
    again = CmError.again(ServerDied.exit_code, "the server ended\n  cause:  out of memory")
    assert isinstance(again, ServerDied)
    assert str(again) == "the server ended\n  cause:  out of memory"
    assert (again.what, again.cause, again.remedy) == ("the server ended", "out of memory", "")
    first = ServerDied("it ended\nwith 9", cause="one\ntwo", remedy="more memory\n  cause:  of a remedy\nless load")
    second = CmError.again(ServerDied.exit_code, str(first))
    assert (second.what, second.cause, second.remedy) == (first.what, first.cause, first.remedy)
    assert second.in_one_line == "it ended (one); more memory"
    assert CmError.again(77, "?").exit_code == 77


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EACCES, NotWritable)])
def test_disk_and_permission_errors_are_translated(number, kind):
    with pytest.raises(kind), translated_os_errors("write", Path("/results/a")):
        raise OSError(number, "?")


def test_a_full_disk_is_named_by_where_it_is_mounted(tmp_path):
    with pytest.raises(DiskFull) as caught, translated_os_errors("write", tmp_path / "a" / "b", "HF_HOME"):
        raise OSError(errno.ENOSPC, "full")
    named = Path(caught.value.cause.rpartition(" ")[2])
    assert named.is_mount()
    assert tmp_path.is_relative_to(named)
    assert "HF_HOME" in caught.value.remedy


def test_nearest_names_the_closest_choice_or_all():
    assert nearest("Ofline", ["Offline", "Server"]) == "did you mean 'Offline'?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("Ofline", "Offline"),
        ("offline", "Offline"),
        ("wokers", "num_workers"),
        ("output", "output_dir"),
        ("llama3", "llama3.1-8b"),
        ("llama3-8b", "llama3.1-8b"),
    ],
)
def test_a_hint_names_a_word_that_is_misspelt_begun_or_a_part(word, meant):
    choices = ["Offline", "Server", "num_workers", "output_dir", "llama3.1-8b"]
    assert nearest(word, choices) == f"did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("rehearsal", "preset"),
        ("rehearsal", "prepare"),
        ("replay", "ray"),
        ("", "a"),
        ("no", "node_ip"),
        ("mode", "devices"),
        ("round", "run_checker"),
    ],
)
def test_no_hint_names_a_word_that_is_not_near(word, other):
    assert nearest(word, [other, "zzzzzzzz"]).startswith("known: ")


@pytest.mark.parametrize(
    ("word", "choices", "listed"),
    [
        ("r3.1", ["r6.1", "r5.0", "vllm", "short"], "r5.0, r6.1"),
        ("v7.0", ["v4.1", "v6.0"], "v4.1, v6.0"),
        ("TEST99", ["TEST01", "TEST06", "other"], "TEST01, TEST06"),
        ("llama2-80b", ["llama2-70b", "gptj-99"], "llama2-70b"),
    ],
)
def test_a_version_that_does_not_exist_lists_those_that_do(word, choices, listed):
    assert nearest(word, choices, "list them with: cm show") == f"known: {listed}"


def test_a_word_that_several_choices_contain_names_them_before_one_that_is_merely_similar():
    choices = ["find_target_qps", "server_target_qps", "offline_target_qps", "submitter"]
    assert nearest("target_qps", choices) == (
        "did you mean 'find_target_qps', 'server_target_qps' or 'offline_target_qps'?"
    )


def test_a_long_list_gives_way_to_how_it_is_seen():
    many = [f"choice{number}" for number in range(30)]
    assert nearest("other", many, "list them with: cm show") == "list them with: cm show"
    assert nearest("other", many[:3], "list them with: cm show") == "known: choice0, choice1, choice2"


# --- docs/exit-codes.md lists every kind of the error tree and every signal that stops a run


PAGE = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def test_the_page_is_the_one_that_the_code_writes():
    written = PAGE.read_text(encoding="utf-8")
    assert written == exit_codes_page(), "python docs/tools/exit_codes_page.py > docs/exit-codes.md"


def test_every_kind_and_every_signal_has_its_line():
    listed = {code for code, _, _ in exit_codes()}
    assert len({kind.exit_code for kind in kinds()}) == len(kinds())
    assert listed == {0, *(kind.exit_code for kind in kinds()), 143, 129, 130}
