"""Documents that cost more than they weigh are refused in one line; all readers of strangers' files use one module."""

import ast
from pathlib import Path

import pytest

from cm4vllm.common.bounded_documents import json_of, lines_of, object_of, read_json, read_object, read_yaml, yaml_of
from syntax import nodes_of

ROOT = Path(__file__).resolve().parents[2]
MERGED = "a: &a {k0: 1}\n" + "".join(f"b{n}: &b{n} {{<<: [{', '.join(['*a'] * 600)}], c{n}: 1}}\n" for n in range(500))


def doubled(levels, opening="[", closing="]", before="", between=", "):
    """Return YAML in which each line refers to the line before twice."""
    lines = [f"p0: &p0 {opening}{before}x{closing}"]
    lines += [
        f"p{n}: &p{n} {opening}{before}*p{n - 1}{between}{'b: ' if before else ''}*p{n - 1}{closing}"
        for n in range(1, levels)
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (doubled(40), "stands for more than 250,000 values"),
        (doubled(40, "{", "}", "a: "), "stands for more than 250,000 values"),
        (MERGED, "stands for more than 250,000 values"),
        ("[" * 10**5, "nested too deep"),
        ("a: &a [*a]", "refers to a part of itself"),
        ("a: {b: [1, " + "9" * 400 + "]}", "a.b[1] is a number beyond 64 bits"),
        ("a: 1" + ":1" * 10**5, "line 1 has a number of 200,001 characters"),
        ("a: 0b" + "1" * 10**6, "line 1 has a number of"),
        ('a: !!int "_1' + ":1" * 10**5 + '"', "line 1 has a number of"),
        ("a: !!timestamp x", "a value cannot be read"),
        ("a: !!int ''", "a value cannot be read"),
        ("a: 2001-99-99", "month"),
        ('"' * 3, "quoted scalar"),
    ],
    ids=lambda value: value[:24],
)
def test_a_yaml_text_that_costs_more_than_it_weighs_is_refused_in_one_line(text, why):
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as refused:
        yaml_of(text)
    assert why in str(refused.value)


def test_references_that_cost_nothing_are_read():
    assert yaml_of("a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}\n") == {
        "a": {"x": 1},
        "b": [{"x": 1}, {"x": 1}],
        "c": {"x": 1, "y": 2},
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": ' * 200 + "1" + "}" * 200, "nested too deep"),
        ("[" * 10**5, "nested too deep"),
        (f'{{"a": [0, {{"b": {10**400}}}]}}', "a[1].b is a number beyond 64 bits"),
        (f"[{-(2**70)}]", "[0] is a number beyond 64 bits"),
        (str(10**30), "its value is a number beyond 64 bits"),
        ("1" * 5000, "4300 digits"),
    ],
    ids=lambda value: value[:12],
)
def test_a_json_text_that_no_function_can_follow_is_refused(text, why, tmp_path):
    with pytest.raises(ValueError, match=".") as refused:
        json_of(text)
    assert why in str(refused.value)
    (tmp_path / "file.json").write_text(f'{{"of": {text}}}')
    with pytest.raises(ValueError, match="."):
        read_object(tmp_path / "file.json")
    assert object_of(tmp_path / "file.json") == {}


def test_what_programs_write_is_read():
    assert json_of('{"a": [18446744073709551615, 1.5, true, null, "x"]}')["a"][0] == 2**64 - 1
    assert yaml_of("") is None


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b" " * 100 + b"1")
    assert read_json(path) == read_yaml(path) == 1
    for read in (read_json, read_yaml):
        with pytest.raises(ValueError, match="longer than 100 bytes"):
            read(path, 100)
    path.write_bytes(b"a\nbc")
    assert list(lines_of(path)) == list(lines_of(path, 2)) == [b"a\n", b"bc"]
    path.write_bytes(b"a\nbcd")
    with pytest.raises(ValueError, match="line 2 is longer than 2 bytes"):
        list(lines_of(path, 2))


#: Parsers of others' formats, by the module and the function.
PARSERS = {
    ("yaml", name) for name in ("load", "safe_load", "load_all", "safe_load_all", "full_load", "compose", "parse")
} | {
    ("json", "load"),
    ("json", "loads"),
    ("msgspec.yaml", "decode"),
    ("msgspec.json", "decode"),
    ("msgspec.json", "Decoder"),
}
#: What else may call them, and why no stranger's document reaches it unbounded.
OTHERS = {
    "src/cm4vllm/common/bounded_documents.py": "the readers",
    "src/cm4vllm/engine/format/meta_files.py": "the nodes, after the readers have accepted the text",
}
#: The reasons why a module reads by itself.
OURS = "a file of the package, or what a process of cm4vllm has written"
PROGRAM = "what a program prints that this process has started"
TYPED = "read by its type, whose errors are caught with RecursionError"
CHILD = "runs in an environment without the package, on what cm4vllm has handed over"
ALONE = {
    "src/cm4vllm/accuracy/graders/inside/exchange.py": CHILD,
    "src/cm4vllm/accuracy/graders/inside/livecodebench.py": CHILD,
    "src/cm4vllm/accuracy/graders/inside/mbxp.py": CHILD,
    "src/cm4vllm/accuracy/word_errors.py": PROGRAM,
    "src/cm4vllm/assets/compression.py": OURS,
    "src/cm4vllm/assets/dummy.py": OURS,
    "src/cm4vllm/assets/samples/picture_dataset.py": OURS,
    "src/cm4vllm/assets/quantization.py": f"{OURS}; {PROGRAM}",
    "src/cm4vllm/campaign/published/published_rates.py": OURS,
    "src/cm4vllm/campaign/published/published_results.py": OURS,
    "src/cm4vllm/common/programs/containers.py": OURS,
    "src/cm4vllm/endpoints/inside/build_bundle.py": CHILD,
    "src/cm4vllm/engine/tools/doctor.py": "an index that cmind has written",
    "src/cm4vllm/engine/tools/register.py": "a list that cmind has written",
    "src/cm4vllm/records/access.py": "a variable of the user's own environment, read by its types",
    "src/cm4vllm/records/published_server.py": TYPED,
    "src/cm4vllm/records/known_hardware.py": OURS,
    "src/cm4vllm/hardware/gpus/gpu.py": OURS,
    "src/cm4vllm/records/logs/detail_log.py": "a line with a bound of its own, whose values are read by their types",
    "src/cm4vllm/results/submitted_names.py": OURS,
    "src/cm4vllm/rules/tables.py": OURS,
    "src/cm4vllm/serving/answers/stated.py": "a part of an answer, bounded where it is received, read by its types",
    "src/cm4vllm/serving/clusters/node_processes.py": PROGRAM,
    "src/cm4vllm/serving/server_container.py": PROGRAM,
    "src/cm4vllm/serving/installation/builds.py": OURS,
    "src/cm4vllm/serving/installation/install.py": PROGRAM,
    "src/cm4vllm/serving/installation/packages.py": PROGRAM,
    "src/cm4vllm/records/vllm/options.py": OURS,
    "src/cm4vllm/serving/options/presets.py": OURS,
    "src/cm4vllm/serving/options/searchable_options.py": OURS,
    "src/cm4vllm/serving/supervisor.py": OURS,
    "src/cm4vllm/submission/archive.py": PROGRAM,
    "src/cm4vllm/submission/campaign_software.py": PROGRAM,
    "src/cm4vllm/submission/capsule/consent.py": OURS,
    "src/cm4vllm/endpoints/client_folder.py": OURS,
    "src/cm4vllm/accuracy/graders/judging.py": TYPED,
    "src/cm4vllm/accuracy/graders/problems.py": TYPED,
    "src/cm4vllm/accuracy/product_catalogue.py": TYPED,
    "src/cm4vllm/campaign/ledger.py": TYPED,
    "src/cm4vllm/campaign/rehearsal/server.py": "a server that asks for nothing but what our client sends",
    "src/cm4vllm/common/records.py": TYPED,
    "src/cm4vllm/records/logs/answers.py": TYPED,
    "src/cm4vllm/endpoints/bundle.py": TYPED,
    "src/cm4vllm/endpoints/events.py": TYPED,
    "src/cm4vllm/endpoints/installation.py": TYPED,
    "src/cm4vllm/hardware/machine_samples.py": TYPED,
    "src/cm4vllm/loadgen/client/worker.py": OURS,
    "src/cm4vllm/loadgen/client/workers.py": OURS,
    "src/cm4vllm/loadgen/process/kept_answers.py": TYPED,
    "src/cm4vllm/loadgen/process/process_monitor.py": TYPED,
    "src/cm4vllm/results/result_index.py": OURS,
    "src/cm4vllm/serving/answers/event_stream.py": "a part of an answer, bounded where it is received",
    "src/cm4vllm/serving/answers/id_answers.py": "decoders for serving/answers/stated.py",
    "src/cm4vllm/serving/answers/text_answers.py": "decoders for serving/answers/stated.py",
    "src/cm4vllm/serving/clusters/ray_cluster.py": PROGRAM,
    "src/cm4vllm/records/vllm/given_options.py": "a word of a command line, whose errors are caught",
}


def parsers_in(nodes):
    """Return the parsers that a file calls or hands on."""
    return {
        (ast.unparse(node.value), node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in {name for _, name in PARSERS}
    } & PARSERS


@pytest.mark.xdist_group("source")
def test_documents_of_strangers_are_read_by_the_bounded_readers_alone():
    """A new reader takes common.bounded_documents; one of our own files is named above, with its reason."""
    files = [path for top in ("src", "script", "automation") for path in sorted((ROOT / top).rglob("*.py"))]
    readers = {path.relative_to(ROOT).as_posix() for path in files if parsers_in(nodes_of(path))}
    assert readers == {*OTHERS, *ALONE}
    assert parsers_in(ast.walk(ast.parse("import yaml\nx = partial(yaml.load, y)\n"))) == {("yaml", "load")}
    assert not parsers_in(ast.walk(ast.parse("from a import read_yaml\nread_yaml(b)\n")))
