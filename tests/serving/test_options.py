"""The options of an installed vLLM, from the help that vLLM 0.32.0 prints."""

import re
from pathlib import Path

import msgspec
import pytest
from packaging.version import Version

from cm4vllm.common.errors import UsageError
from cm4vllm.common.host_addresses import PROXY_VARIABLES
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.vllm import options as module
from cm4vllm.records.vllm.given_options import given_options, value_text, whole_number
from cm4vllm.records.vllm.options import OPTIONS_FILE, Option, fit_to_release, parsed_options, read_options, spelling
from cm4vllm.records.vllm.server_needs import api_processes, ring_buffer_bytes, worker_count
from cm4vllm.serving.carried_variables import carried_variables, without_service_links
from cm4vllm.serving.options import fixed_options
from cm4vllm.serving.options.fixed_options import written_in_full
from vllm_lines import LINES

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
    assert options["--served-model-name"].several and options["--api-key"].takes_value
    assert options["--max-model-len"].multiples and not options["--max-num-seqs"].multiples
    assert not options["--enforce-eager"].takes_value
    assert "bfloat16" in options["--dtype"].choices


def test_what_the_release_knows_is_left_as_it_is(options):
    words = (
        "model --max_num_seqs 4 --seed=-1 --compilation-config.mode 3 -tp 2 -O3 --enforce-eager "
        "--dtype=bfloat16 --gpu-memory-util=0.9 --allowed-origins a b"
    ).split()
    assert fit_to_release(words, options) == (words, [])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--max-num-seqz=4", "--max-num-seqs"),
        ("--tensor-paralel-size=2", "--tensor-parallel-size"),
        ("--zzz", "--help=all"),
        ("--dtype=bfloat61", "bfloat16"),
        ("--enforce-eager=yes", "takes no value"),
        ("--gpu-memory-util", "needs a value"),
        ("--max-num=4", "has no option"),
        ("--max-model-len", "needs a value"),
    ],
)
def test_an_option_or_a_value_that_this_release_does_not_take_is_an_error(options, word, said):
    with pytest.raises(UsageError) as caught:
        fit_to_release(["model", word], options)
    assert said in str(caught.value)
    assert word.startswith(("--dtype", "--enforce", "--max-model", "--gpu")) or "has no option" in caught.value.what


def test_an_option_that_was_dropped_is_left_out_with_a_note_unless_the_release_has_it(options):
    words, notes = fit_to_release(["model", "--disable-log-requests", "--swap-space", "4", "--seed", "1"], options)
    assert words == ["model", "--seed", "1"]
    assert [note.partition(":")[0] for note in notes] == ["--disable-log-requests", "--swap-space"]
    assert all(note.endswith("; left out") for note in notes)
    old = {"--disable-log-requests": Option("--disable-log-requests", False)}
    assert fit_to_release(["model", "--disable-log-requests"], old) == (["model", "--disable-log-requests"], [])


@pytest.mark.parametrize("given", [["--guided-decoding-backend", "xgrammar"], ["--guided-decoding-backend=xgrammar"]])
def test_an_option_that_was_renamed_is_said_in_present_words(options, given):
    words, notes = fit_to_release(["model", *given], options)
    assert words == ["model", "--structured-outputs-config.backend", "xgrammar"]
    assert "said as --structured-outputs-config.backend xgrammar" in notes[0]


def vanished():
    return msgspec.yaml.decode(FILE.with_name("vanished.yaml").read_bytes())


def made_line(name):
    """Return an option that vanished as a line gave it, with a value that it took."""
    special = {"--task": "generate", "--device": "cuda", "--chat-template-text-format": "openai", "-O": '{"level":3}'}
    return [name, special.get(name, "16")] if vanished()[name]["value"] == "always" else [name]


@pytest.mark.parametrize("name", vanished())
def test_each_option_that_vanished_is_translated_or_refused_by_name(options, name):
    assert name not in options
    given, line = module.split_options(made_line(name))[1][0], ["model", *made_line(name), "--seed", "1"]
    renamed = module._renamed(module._as_spelled(given, options))
    if renamed is not None and renamed.refused and name == renamed.option:
        with pytest.raises(UsageError) as caught:
            fit_to_release(line, options)
        assert f"no option {name}" in caught.value.what and renamed.note in caught.value.cause
        return
    words, notes = fit_to_release(line, options)
    assert name not in words and words[-2:] == ["--seed", "1"]
    assert [note.partition(":")[0] for note in notes] == ([name] if renamed else [])
    assert len(words) > 3 if renamed is None or (renamed.now and name == renamed.option) else True
    assert fit_to_release(words, options) == (words, [])


def test_each_option_that_vanished_has_its_releases_and_each_replacement_its_source():
    named = "max-num-partial-prefills max-long-partial-prefills calculate-kv-scales override-attention-dtype"
    assert {f"--{name}" for name in (*named.split(), "enable-reasoning", "task", "swap-space")} <= set(vanished())
    for name, entry in vanished().items():
        since, last, gone = (Version(str(entry[key])) for key in ("since", "last", "gone"))
        assert Version("0.5.0") <= since <= last < gone <= Version("0.33.0"), name
        assert entry["value"] in ("always", "never", "optional"), name
    assert set(module._renamed_options()) <= set(vanished())
    sources = [renamed.source for renamed in module._renamed_options().values()]
    assert all(re.match(r"vllm#\d+$|0\.\d+\.\d+ [\w/]+\.py", source) for source in sources)


@pytest.mark.parametrize(
    ("given", "now"),
    [
        ("--task generate", ""),
        ("--task=embed", "--runner pooling --convert embed"),
        ("--eplb-window-size=20", "--eplb-config.window_size 20"),
        ("--rope-scaling.factor 2", "--hf-overrides.rope_scaling.factor 2"),
        ("--no-disable-log-requests", "--enable-log-requests"),
        ("--no-calculate-kv-scales", ""),
        ("--max-num-partial-prefills=4", ""),
        ("--override-pooler-config={}", "--pooler-config={}"),
        ("--cuda-graph-sizes 4232", "--max-cudagraph-capture-size 4232"),
        ("--cuda-graph-sizes=16", "--max-cudagraph-capture-size 16"),
    ],
)
def test_an_option_that_vanished_is_said_by_its_value_and_its_parts(options, given, now):
    assert fit_to_release(given.split(), options)[0] == now.split()


@pytest.mark.parametrize("given", ["--task=sing", "-O.level 3", '-O {"level":3}', "--speculative-model x"])
def test_a_value_without_a_replacement_is_refused_by_the_options_name(options, given):
    with pytest.raises(UsageError, match="has no option"):
        fit_to_release(given.split(), options)


def test_a_replacement_that_the_release_does_not_have_either_is_refused():
    with pytest.raises(UsageError, match="no option --eplb-config"):
        fit_to_release(["--eplb-window-size=20"], {"--seed": Option("--seed", True)})


def test_a_level_is_that_of_the_release():
    older = {"-O": Option("-O", True)}
    assert fit_to_release(["-O3"], older) == (["-O3"], [])


def test_no_replacement_gives_an_option_that_users_may_not_give():
    replaced = module._renamed_options().values()
    words = [word for renamed in replaced for said in (renamed.now, *renamed.values.values()) for word in said]
    names = {written_in_full(word, fixed_options._FIXED) for word in words if word.startswith("-")}
    assert names == {"", "--mm-processor-cache-gb"}  # 0 for all benchmarks with media


def test_an_installation_without_its_options_has_no_known_ones(tmp_path):
    assert read_options(tmp_path / "vllm.json") is None
    for text in ("no options here\n", "[]"):
        (tmp_path / OPTIONS_FILE).write_text(text)
        assert read_options(tmp_path / "vllm.json") is None
    (tmp_path / OPTIONS_FILE).write_bytes(FILE.read_bytes())
    assert len(read_options(tmp_path / "vllm.json")) > 400


# --- the options that a command line gives, in every form that vLLM takes


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


def test_an_option_has_one_name_in_records_and_each_release_gets_its_own_spelling(options):
    for word in ("--cuda-graph-sizes=4", "--cudagraph-capture-sizes=4"):
        assert list(given_options([word])) == ["cudagraph-capture-sizes"]
    older = {"--cuda-graph-sizes": Option("--cuda-graph-sizes", True)}
    words = "model --cudagraph-capture-sizes=8 --cuda_graph_sizes 4 8".split()
    assert fit_to_release(words, older)[0] == "model --cuda-graph-sizes=8 --cuda_graph_sizes 4 8".split()
    assert (
        fit_to_release(words, options)[0] == "model --cudagraph-capture-sizes=8 --cudagraph-capture-sizes 4 8".split()
    )
    switch = {"--no-cuda-graph-sizes": Option("--no-cuda-graph-sizes", False)}
    assert fit_to_release(["--no-cudagraph-capture-sizes"], switch | older)[0] == ["--no-cuda-graph-sizes"]
    assert spelling("cudagraph-capture-sizes", older) == "cuda-graph-sizes"


def test_values_are_written_as_in_a_command_line_and_a_whole_number_is_none_where_it_is_none():
    given = given_options(["--max-num-seqs", "many", "--enforce-eager"])
    assert [whole_number(given, name) for name in ("max-num-seqs", "enforce-eager", "seed")] == [None] * 3
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


# --- the processes and the shared memory that a server with given options needs


@pytest.mark.parametrize(
    ("words", "processes", "shared", "workers"),
    [
        ("", 1, 0, 1),
        ("--api-server-count 4", 4, 0, 1),
        ("--api_server_count=4", 4, 0, 1),
        ("--api-server-count", 1, 0, 1),
        ("--data-parallel-size 2", 2, 0, 2),
        ("--data-parallel-size=2 --api-server-count=1", 1, 0, 2),
        ("--tensor-parallel-size 2", 1, 240 * 2**20, 2),
        ("--pipeline-parallel-size=2", 1, 240 * 2**20, 2),
        ("--tensor-parallel-size=2 --distributed-executor-backend=ray", 1, 0, 2),
        ("-tp 2 --pipeline_parallel_size=3 -dp=2", 2, 240 * 2**20, 12),
    ],
)
def test_what_a_server_needs_is_that_of_its_options(words, processes, shared, workers):
    given = given_options(["vllm", "serve", "m", *words.split()])
    assert (api_processes(given), ring_buffer_bytes(given), worker_count(given)) == (processes, shared, workers)


# --- variables that servers on other nodes and in containers get, and those that a Service's name makes by accident


#: The variables that Kubernetes sets in each pod for a Service named vllm (kubernetes.io, Accessing the Service).
SERVICE = {
    "VLLM_PORT": "tcp://10.0.0.7:8000",
    "VLLM_SERVICE_HOST": "10.0.0.7",
    "VLLM_SERVICE_PORT": "8000",
    "VLLM_SERVICE_PORT_HTTP": "8000",
    "VLLM_PORT_8000_TCP": "tcp://10.0.0.7:8000",
    "VLLM_PORT_8000_TCP_PROTO": "tcp",
    "VLLM_PORT_8000_TCP_PORT": "8000",
    "VLLM_PORT_8000_TCP_ADDR": "10.0.0.7",
}


@pytest.mark.parametrize(
    "links",
    [
        SERVICE,
        {key.replace("VLLM", "HF_CACHE"): value for key, value in SERVICE.items()},
        {"VLLM_PORT": "udp://[fd00::7]:9", "NCCL_PORT": "tcp://a:1", "VLLM_ROUTER_PORT": "tcp://10.1.0.3:80"},
    ],
)
def test_what_a_services_name_makes_is_left_out(links):
    kept = {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_HOST_IP": "10.0.0.1",
        "HOME": "/root",
        "REDIS_PORT": "tcp://10.0.0.9:1",
    }
    assert without_service_links({**kept, **links}) == kept
    assert carried_variables({**kept, **links}) == {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_HOST_IP": "10.0.0.1"}


@pytest.mark.parametrize(
    ("name", "value"), [("VLLM_PORT", "8000"), ("VLLM_PORT", "0"), *((name, "http://p:1") for name in PROXY_VARIABLES)]
)
def test_a_port_that_is_a_number_and_a_proxy_in_either_spelling_are_carried(name, value):
    assert carried_variables({name: value, "PROXY": "x", "CUDA_VISIBLE_DEVICES": "0"}) == {name: value}


# --- the lines that published submissions have, and what this release takes of them

PUBLISHED = msgspec.yaml.decode((Path(__file__).parent / "recorded/published_lines.yaml").read_bytes())


@pytest.mark.parametrize("line", PUBLISHED, ids=lambda line: line["file"])
def test_each_published_line_is_translated_or_refused_by_the_options_name(options, line):
    given = line["words"].split()
    if "refused" in line:
        with pytest.raises(UsageError) as caught:
            fit_to_release(given, options)
        assert line["refused"] in caught.value.what and caught.value.remedy
        return
    words, notes = fit_to_release(given, options)
    assert not {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")} & set(vanished())
    assert fit_to_release(words, options) == (words, [])
    left = [word for word in given if word not in words and word.startswith("-")]
    assert {note.partition(":")[0] for note in notes} == set(left)


def test_the_published_lines_are_of_four_rounds_and_most_are_taken():
    assert len(PUBLISHED) == 78 and sum("refused" in line for line in PUBLISHED) == 22
    assert {line["repository"].rpartition("_")[2] for line in PUBLISHED} == {"v4.1", "v5.1", "v6.0", "v6.1"}
    assert all(re.fullmatch("[0-9a-f]{40}", line["commit"]) for line in PUBLISHED)
