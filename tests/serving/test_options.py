"""The options of an installed vLLM, from the help that vLLM 0.32.0 prints."""

from pathlib import Path

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.records.vllm import options as module
from cm4vllm.records.vllm.options import HELP_FILE, Option, fit_to_release, parse_help, read_options

HELP = Path(module.__file__).with_name(HELP_FILE)


@pytest.fixture(scope="module")
def options():
    return parse_help(HELP.read_text())


def test_every_option_is_found_by_each_of_its_names(options):
    assert len(options) > 400
    full = "tensor-parallel-size"
    assert options["--tensor-parallel-size"] == Option("--tensor-parallel-size", True, full_name=full)
    assert options["-tp"] == Option("-tp", True, full_name=full)
    assert options["--no-enforce-eager"] == Option("--no-enforce-eager", False, full_name="enforce-eager", off=True)
    assert options["--served-model-name"].several
    assert options["--max-model-len"].multiples
    assert not options["--max-num-seqs"].multiples
    assert not options["--enforce-eager"].takes_value
    assert not options["--no-enforce-eager"].takes_value
    assert "bfloat16" in options["--dtype"].choices
    assert options["--api-key"].takes_value
    listed = {line.split()[0] for line in HELP.read_text().splitlines() if line.startswith("  -")}
    assert {name.rstrip(",") for name in listed} <= set(options)


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("  --parser {a,b} or name registered in --parser-plugin", ()),
        ("  --traces {all,model,None} [{all,model,None} ...]", ()),
        ("  --dtype {auto,half}, -d {auto,half}   what is computed in", ("auto", "half")),
    ],
)
def test_words_after_the_choices_belong_to_the_value(line, choices):
    words = line.partition("   ")[0].replace("--parser-plugin", "").split()
    names = [word.rstrip(",") for word in words if word.startswith("-")]
    assert [(name, option.takes_value, option.choices) for name, option in parse_help(line).items()] == [
        (name, True, choices) for name in names
    ]


def test_the_help_of_python_3_13_shows_the_value_once():
    options = parse_help("  --tensor-parallel-size, -tp N\n").values()
    assert {(option.full_name, option.takes_value) for option in options} == {("tensor-parallel-size", True)}


def test_what_the_release_knows_is_left_as_it_is(options):
    words = [
        "model",
        "--max_num_seqs",
        "4",
        "--seed=-1",
        "--compilation-config.mode",
        "3",
        "-tp",
        "2",
        "-O3",
        "--enforce-eager",
        "--dtype=bfloat16",
        "--allowed-origins",
        "a",
        "b",
    ]
    assert fit_to_release(words, options) == (words, [])


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("--max-num-seq=4", "--max-num-seqs"),
        ("--tensor-paralel-size=2", "--tensor-parallel-size"),
        ("--zzz", "--help=all"),
    ],
)
def test_an_unknown_option_is_an_error_with_the_nearest(options, word, near):
    with pytest.raises(UsageError, match="has no option") as caught:
        fit_to_release(["model", word], options)
    assert near in caught.value.remedy


@pytest.mark.parametrize(
    ("word", "said"),
    [("--dtype=bfloat61", "bfloat16"), ("--enforce-eager=yes", "takes no value"), ("--max-model-len", "needs a value")],
)
def test_a_value_that_the_option_does_not_take_is_an_error(options, word, said):
    with pytest.raises(UsageError) as caught:
        fit_to_release(["model", word], options)
    assert said in str(caught.value)


def test_an_option_that_was_dropped_is_left_out_with_a_note(options):
    words, notes = fit_to_release(["model", "--disable-log-requests", "--swap-space", "4", "--seed", "1"], options)
    assert words == ["model", "--seed", "1"]
    assert [note.partition(":")[0] for note in notes] == ["--disable-log-requests", "--swap-space"]
    assert all(note.endswith("; left out") for note in notes)


@pytest.mark.parametrize("given", [["--guided-decoding-backend", "xgrammar"], ["--guided-decoding-backend=xgrammar"]])
def test_an_option_that_was_renamed_is_said_in_present_words(options, given):
    words, notes = fit_to_release(["model", *given], options)
    assert words == ["model", "--structured-outputs-config.backend", "xgrammar"]
    assert "said as --structured-outputs-config.backend xgrammar" in notes[0]


def test_a_release_that_still_has_an_option_gets_it():
    old = {"--disable-log-requests": Option("--disable-log-requests", False)}
    assert fit_to_release(["model", "--disable-log-requests"], old) == (["model", "--disable-log-requests"], [])


def test_no_translation_is_for_an_option_that_is_known_and_all_lead_to_known_ones(options):
    for name, renamed in module._renamed_options().items():
        assert name not in options
        assert all(word.partition(".")[0] in options for word in renamed.now if word.startswith("-"))


def test_an_installation_without_its_help_has_no_known_options(tmp_path):
    assert read_options(tmp_path / "vllm.json") is None
    (tmp_path / HELP_FILE).write_text("no options here\n")
    assert read_options(tmp_path / "vllm.json") is None
    (tmp_path / HELP_FILE).write_text(HELP.read_text())
    assert len(read_options(tmp_path / "vllm.json")) > 400
