"""The options that a command line gives, in every form that vLLM takes."""

import msgspec
import pytest

from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.vllm.given_options import given_options, value_text, whole_number
from cm4vllm.records.vllm.options import parsed_options
from vllm_lines import LINES


@pytest.mark.parametrize(("line", "options"), LINES)
def test_an_option_is_read_in_every_form(line, options):
    for program in ("", "python -m vllm.entrypoints.cli.main serve m ", "A=1 vllm serve m "):
        assert given_options((program + line).split()) == options


def test_options_of_another_release_have_the_values_that_follow():
    words = (
        "python -m vllm.entrypoints.openai.api_server --num-scheduler-steps 10 --use_v2 --a 1 x --no-b --c=y".split()
    )
    assert given_options(words) == {"num-scheduler-steps": 10, "use-v2": True, "a": [1, "x"], "b": False, "c": "y"}


def test_the_options_of_the_installation_decide():
    rest = '"type": "", "multiples": false, "choices": []'
    options = parsed_options(
        f"""[{{"flags": ["--deep-parallel-size", "-deep"], "nargs": null, {rest}}},
        {{"flags": ["--switch", "--no-switch"], "nargs": 0, {rest}}},
        {{"flags": ["--names"], "nargs": "+", {rest}}}]""".encode()
    )
    words = ["-deep", "2", "--no-switch", "--names=a"]
    assert given_options(words, options) == {"deep-parallel-size": 2, "switch": False, "names": ["a"]}


@pytest.mark.parametrize("text", ["{", '{"a":NaN}', "[" * 100_000, "9" * 5000, "1e999", '{"a":' + "9" * 400 + "}"])
def test_no_command_line_makes_a_record_that_cannot_be_written(text):
    given = given_options(["--hf-overrides", text, f"--hf-overrides.a={text}"])
    assert msgspec.json.decode(msgspec.json.encode(given)) == given


def test_a_whole_number_is_none_where_it_is_none():
    given = given_options(["--max-num-seqs", "many", "--enforce-eager"])
    assert [whole_number(given, name) for name in ("max-num-seqs", "enforce-eager", "seed")] == [None] * 3


def test_values_are_written_as_in_a_command_line():
    values = {"a": True, "b": False, "c": 0.5, "d": ["x", 1], "e": {"f": 1}}
    assert [value_text(value) for value in values.values()] == ["yes", "no", "0.5", "x 1", '{"f":1}']


def test_the_record_of_a_server_has_the_options_of_its_command_line(tmp_path):
    record = ServerRecord(
        endpoint="http://127.0.0.1:1", model_name="m", max_model_len=8, version="0.32.0", owned=True,
        argv=["python", "-m", "vllm.entrypoints.cli.main", "serve", "m", "--max_num_seqs=64", "-tp", "2"],
    )  # fmt: skip
    assert record.options == {"max-num-seqs": 64, "tensor-parallel-size": 2}
    write_record(tmp_path / "server.json", record)
    stored = msgspec.json.decode((tmp_path / "server.json").read_bytes())
    assert stored["options"] == record.options
    del stored["options"]  # as an earlier version wrote it
    (tmp_path / "server.json").write_bytes(msgspec.json.encode(stored))
    assert read_record(tmp_path / "server.json", ServerRecord) == record


def test_an_option_has_one_name_in_records_however_a_release_spells_it():
    for word in ("--cuda-graph-sizes=4", "--cudagraph-capture-sizes=4"):
        assert list(given_options([word])) == ["cudagraph-capture-sizes"]
