"""Reading a damaged log ends in an answer or in one of our errors, and no damaged log reads as valid."""

import json
import random

import pytest

from cm4vllm.common.errors import CmError
from cm4vllm.records.logs.run_logs import DETAIL_LOG, read_performance

RESULTS = {
    "Server": "4xH100-SXM-80GB_vLLM_FP8-reference-cpu-pytorch-v2.3.1-default_config/llama2-70b-99/server",
    "Offline": "vLLM_8xL40S-reference-cpu-pytorch-v2.3.1-default_config/llama2-70b-99.9/offline",
}
PREFIX = ":::MLLOG "
#: Values that take the place of another one: each type of JSON, and texts that no parser takes.
ODD_VALUES = (
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1e999",
    "9" * 400,
    "9" * 5000,
    "NaN",
    "-Infinity",
    '""',
    '"VALID"',
    '"false"',
    "[]",
    "{}",
    "[" * 3000 + "]" * 3000,
    '"\\ud800"',
)
DECIDES = (
    "result_validity",
    "result_min_duration_met",
    "result_min_queries_met",
    "early_stopping_met",
    "result_perf_constraints_met",
)
MUTATIONS = 1500


@pytest.fixture(params=RESULTS)
def lines(request, neural_magic):
    path = neural_magic / "results" / RESULTS[request.param] / "performance" / "run_1" / DETAIL_LOG
    # LoadGen's lines about itself and about the order of the samples are half the log, and none of them is read.
    return [
        line
        for line in path.read_text().splitlines(True)
        if '"loaded_qsl_set"' not in line and '"loadgen_file_sha1"' not in line
    ]


def read(folder, text):
    """Return whether a log reads as valid. What is not an error of ours passes through and fails the test."""
    (folder / DETAIL_LOG).write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    try:
        return read_performance(folder).valid
    except CmError as error:
        assert error.what and error.cause
        return False


def key_of(line):
    return json.loads(line.removeprefix(PREFIX))["key"]


def with_value(line, value):
    entry = json.loads(line.removeprefix(PREFIX))
    entry["value"] = "@@"
    return PREFIX + json.dumps(entry).replace('"@@"', value) + "\n"


def test_the_log_itself_is_valid(lines, tmp_path):
    assert read(tmp_path, "".join(lines))


def test_no_mutation_ends_in_a_traceback(lines, tmp_path):
    chance = random.Random(20261122)
    for _ in range(MUTATIONS):
        read(tmp_path, mutated(list(lines), chance))


def mutated(lines, chance):
    at = chance.randrange(len(lines))
    kind = chance.choice(["value", "drop", "twice", "swap", "cut", "flip", "foreign", "append", "insert"])
    if kind == "value":
        lines[at] = with_value(lines[at], chance.choice(ODD_VALUES))
    elif kind == "drop":
        del lines[at]
    elif kind == "twice":
        lines.insert(chance.randrange(len(lines)), lines[at])
    elif kind == "swap":
        other = chance.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "foreign":
        lines.insert(at, chance.choice(["\n", "hello\n", ":::\n", "[]\n", PREFIX + "\n", "\x00\n"]))
    elif kind == "append":
        lines += lines[at:] if chance.random() < 0.5 else lines[:at]
    data = bytearray("".join(lines).encode(errors="surrogatepass"))
    if kind == "cut":
        del data[chance.randrange(len(data)) :]
    elif kind in ("flip", "insert"):
        for _ in range(chance.randint(1, 8)):
            place = chance.randrange(len(data))
            data[place : place + (kind == "flip")] = bytes([chance.randrange(256)])
    return bytes(data)


def test_no_value_in_the_place_of_a_verdict_reads_as_valid(lines, tmp_path):
    tried = 0
    for at, line in enumerate(lines):
        key = key_of(line)
        if key in DECIDES:
            honest = '"VALID"' if key == "result_validity" else "true"
            for value in (*ODD_VALUES, '"INVALID"', '"valid"', '"true"', "1"):
                tried += 1
                text = "".join([*lines[:at], with_value(line, value), *lines[at + 1 :]])
                assert read(tmp_path, text) == (value == honest), (key, value[:40])
            assert not read(tmp_path, "".join(lines[:at] + lines[at + 1 :])), f"without {key}"
            assert not read(tmp_path, "".join([*lines[:at], "not" + line, *lines[at + 1 :]])), f"{key} spoiled"
    assert tried > 50


def test_no_log_with_an_error_reads_as_valid(lines, tmp_path):
    for at in range(0, len(lines), 7):
        entry = json.loads(lines[at].removeprefix(PREFIX))
        for is_error, key in ((True, entry["key"]), (False, "error_runtime")):
            changed = {**entry, "key": key, "metadata": {**entry["metadata"], "is_error": is_error}}
            flagged = [*lines[:at], PREFIX + json.dumps(changed) + "\n", *lines[at + 1 :]]
            added = [*lines[:at], PREFIX + json.dumps({**changed, "key": "error_runtime"}) + "\n", *lines[at:]]
            assert not read(tmp_path, "".join(flagged)), (at, is_error, key)
            assert not read(tmp_path, "".join(added)), (at, is_error, key)


def test_no_two_logs_and_no_cut_log_read_as_valid(lines, tmp_path):
    chance = random.Random(41)
    whole = "".join(lines)
    invalid = whole.replace('"VALID"', '"INVALID"')
    assert not read(tmp_path, invalid + whole) and not read(tmp_path, whole + whole)
    for _ in range(60):
        cut = chance.randrange(1, len(whole) - 1)
        assert not read(tmp_path, whole[:cut]), cut
        for text in (whole + whole[:cut], whole + whole[cut:], whole[:cut] + whole, invalid[:cut] + whole):
            assert not read(tmp_path, text), cut
