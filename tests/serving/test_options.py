"""The options of an installed vLLM, as the parser of vLLM 0.32.0 has them."""

from pathlib import Path

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.records.vllm import options as module
from cm4vllm.records.vllm.options import OPTIONS_FILE, Option, fitted, parsed_options, read_options, spelling

FILE = Path(module.__file__).with_name(OPTIONS_FILE)


@pytest.fixture(scope="module")
def options():
    return parsed_options(FILE.read_bytes())


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
    assert fitted(words, options) == (words, [])


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
        fitted(["model", word], options)
    assert near in caught.value.remedy


@pytest.mark.parametrize(
    ("word", "said"),
    [("--dtype=bfloat61", "bfloat16"), ("--enforce-eager=yes", "takes no value"), ("--max-model-len", "needs a value")],
)
def test_a_value_that_the_option_does_not_take_is_an_error(options, word, said):
    with pytest.raises(UsageError) as caught:
        fitted(["model", word], options)
    assert said in str(caught.value)


def test_an_option_that_was_dropped_is_left_out_with_a_note(options):
    words, notes = fitted(["model", "--disable-log-requests", "--swap-space", "4", "--seed", "1"], options)
    assert words == ["model", "--seed", "1"]
    assert [note.partition(":")[0] for note in notes] == ["--disable-log-requests", "--swap-space"]
    assert all(note.endswith("; left out") for note in notes)


@pytest.mark.parametrize("given", [["--guided-decoding-backend", "xgrammar"], ["--guided-decoding-backend=xgrammar"]])
def test_an_option_that_was_renamed_is_said_in_present_words(options, given):
    words, notes = fitted(["model", *given], options)
    assert words == ["model", "--structured-outputs-config.backend", "xgrammar"]
    assert "said as --structured-outputs-config.backend xgrammar" in notes[0]


def test_a_release_that_still_has_an_option_gets_it():
    old = {"--disable-log-requests": Option("--disable-log-requests", False)}
    assert fitted(["model", "--disable-log-requests"], old) == (["model", "--disable-log-requests"], [])


def test_no_translation_is_for_an_option_that_is_known_and_all_lead_to_known_ones(options):
    for name, renamed in module._renamed().items():
        assert name not in options
        assert all(word.partition(".")[0] in options for word in renamed.now if word.startswith("-"))


def test_an_installation_without_its_options_has_no_known_ones(tmp_path):
    assert read_options(tmp_path / "vllm.json") is None
    for text in ("no options here\n", "[]"):
        (tmp_path / OPTIONS_FILE).write_text(text)
        assert read_options(tmp_path / "vllm.json") is None
    (tmp_path / OPTIONS_FILE).write_bytes(FILE.read_bytes())
    assert len(read_options(tmp_path / "vllm.json")) > 400


def test_each_release_gets_an_option_as_it_spells_it(options):
    older = {"--cuda-graph-sizes": Option("--cuda-graph-sizes", True)}
    words = ["model", "--cudagraph-capture-sizes=8", "--cuda_graph_sizes", "4"]
    assert fitted(words, older)[0] == ["model", "--cuda-graph-sizes=8", "--cuda_graph_sizes", "4"]
    assert fitted(words, options)[0] == ["model", "--cudagraph-capture-sizes=8", "--cudagraph-capture-sizes", "4"]
    assert spelling("cudagraph-capture-sizes", older) == "cuda-graph-sizes"
