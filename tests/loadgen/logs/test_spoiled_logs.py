"""Reading a damaged log ends in its true figures or in a refusal that names cause and file."""

import json
import os
import random
import re
from dataclasses import asdict

import numpy as np
import pytest
from fake_vllm import FakeVllm
from msgspec.structs import replace
from spoiled_logs import KEEPS_FIGURES, ODD_VALUES, cuts, key_of, performance_log, spoiled, with_value

from cm4vllm.campaign.search.projection import FullLength
from cm4vllm.common.errors import CmError, RunFailed
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import read_record
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.logs.answers import read_answers
from cm4vllm.records.logs.arrivals import arrivals
from cm4vllm.records.logs.detail_log import read_detail_log
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, DETAIL_LOG, read_accuracy_log, read_performance, require_whole
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.results.log_folders import Reader
from cm4vllm.rules import Mode

#: CM4VLLM_SPOILED_LOGS=20000 tries that many of each log instead.
COUNT = int(os.environ.get("CM4VLLM_SPOILED_LOGS", "60"))
SEED = int(os.environ.get("CM4VLLM_SPOILED_SEED", "20261123"))
LOGS = [(scenario, version) for scenario in ("Server", "Offline") for version in ("6.0.17", "4.0")]


def version(folder):
    return read_detail_log(folder / DETAIL_LOG).text_or_none("loadgen_version")


def outcome(folder, data, kind=""):
    """Return the result that a log is read as, None where it is refused; other readers do not call it valid then."""
    path = folder / DETAIL_LOG
    path.write_bytes(data)
    (folder / ACCURACY_LOG).write_text("[]")
    reader, results = Reader(folder), []
    for read in (read_performance, version, lambda folder: require_whole(folder, Mode.ACCURACY)):
        try:
            results.append(read(folder))
        except CmError as error:
            assert error.what and error.cause and str(path) in error.what
            f"{error.what}{error.cause}{error.remedy}".encode()
            results.append(None)
    if kind in KEEPS_FIGURES:  # otherwise an odd setting, which the checks find, may be all that is wrong
        assert whole_and_valid(reader.performance(folder, None)) == (results[0] is not None and results[0].valid)
    return results[0]


def whole_and_valid(result):
    """Return True if a log of a tree reads as valid: of one without its figure, a check says so (METRIC-MISSING)."""
    return result is not None and result.loadgen_valid and result.tokens_per_second is not None


def reads_as_valid(folder, data):
    """Return True if a log reads as that of a valid result."""
    (folder / DETAIL_LOG).write_bytes(data)
    try:
        return read_performance(folder).valid
    except RunFailed as error:
        assert error.cause and str(folder) in error.what
        return False


def known(result):
    """Return the figures of a result, its reasons left out."""
    return {key: value for key, value in asdict(result).items() if key not in ("reasons", "valid")}


@pytest.mark.parametrize(("scenario", "version"), LOGS)
def test_a_spoiled_valid_log_is_refused_or_gives_its_own_figures(tmp_path, scenario, version):
    lines = performance_log(scenario, version=version)
    honest = outcome(tmp_path, b"".join(lines))
    assert honest.valid
    other = performance_log(scenario, version=version, valid=False)
    for kind, data in spoiled(lines, other, random.Random(SEED), COUNT):
        result = outcome(tmp_path, data, kind)
        if result is not None and result.valid and kind in KEEPS_FIGURES:
            assert known(result) == known(honest), kind


@pytest.mark.parametrize(("scenario", "version"), LOGS)
@pytest.mark.parametrize("damage", [{"valid": False}, {"error": True}])
def test_no_spoiled_log_that_is_not_valid_reads_as_valid(tmp_path, scenario, version, damage):
    lines = performance_log(scenario, version=version, **damage)
    other = performance_log(scenario, version=version, **damage)
    assert not outcome(tmp_path, b"".join(lines)).valid
    for kind, data in spoiled(lines, other, random.Random(SEED), COUNT):
        assert not reads_as_valid(tmp_path, data), (kind, data if len(data) < 20_000 else len(data))


@pytest.mark.parametrize(("scenario", "version"), LOGS)
def test_no_cut_log_reads_as_valid(tmp_path, scenario, version):
    lines = performance_log(scenario, version=version)
    for kind, data in cuts(lines):
        assert not reads_as_valid(tmp_path, data), (kind, data[-300:])
        assert not whole_and_valid(Reader(tmp_path).performance(tmp_path, None)), (kind, data[-300:])


@pytest.mark.parametrize("scenario", ["Server", "Offline"])
def test_no_value_of_any_entry_ends_in_a_traceback(tmp_path, scenario):
    lines = performance_log(scenario)
    for at, line in enumerate(lines):
        if key_of(line).startswith(("effective_", "result_", "early_", "generated_", "num_", "loadgen_v", "power_")):
            for value in ODD_VALUES:
                reads_as_valid(tmp_path, b"".join([*lines[:at], with_value(line, value), *lines[at + 1 :]]))


DECIDES = tuple(
    (
        "result_validity result_min_duration_met result_min_queries_met early_stopping_met result_perf_constraints_met"
    ).split()
)


@pytest.mark.parametrize("scenario", ["Server", "Offline"])
def test_no_value_in_the_place_of_a_verdict_reads_as_valid(tmp_path, scenario):
    lines = performance_log(scenario)
    decisive = [at for at, line in enumerate(lines) if key_of(line) in DECIDES]
    assert len(decisive) == len(DECIDES) - (scenario == "Offline")  # which has no limits
    for at in decisive:
        honest = '"VALID"' if key_of(lines[at]) == "result_validity" else "true"
        for value in (*ODD_VALUES, '"INVALID"', '"valid"', '"true"', "1"):
            text = b"".join([*lines[:at], with_value(lines[at], value), *lines[at + 1 :]])
            assert reads_as_valid(tmp_path, text) == (value == honest), (key_of(lines[at]), value[:40])
        for left in (b"", b"not" + lines[at]):
            assert not reads_as_valid(tmp_path, b"".join([*lines[:at], left, *lines[at + 1 :]])), (at, left)


def accuracy_log(chance, samples=40):
    """Return the text of an accuracy log as LoadGen writes it, and the tokens of each sample."""
    tokens = {index: [chance.randrange(1, 128_000) for _ in range(chance.randint(1, 30))] for index in range(samples)}
    lines = [
        f'{{ "seq_id" : {at}, "qsl_idx" : {index}, "data" : "{np.array(ids, np.int32).tobytes().hex().upper()}", '
        f'"token_count" : {len(ids)} }}'
        for at, (index, ids) in enumerate(tokens.items())
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n", tokens


def spoiled_accuracy_log(text, chance):
    """Return a damaged copy of an accuracy log."""
    data = bytearray(text.encode())
    begin = chance.randrange(len(data))
    end = min(len(data), begin + int(chance.expovariate(1 / 200)) + 1)
    kind = chance.choice(
        [
            *"cut headless hole removed garbled appended twice nested endings encoded".split(),
            "truncated as for a submission",
            "value",
        ]
    )
    if kind == "cut":
        return kind, bytes(data[:begin])
    if kind == "headless":
        return kind, bytes(data[begin + 1 :])
    if kind in ("hole", "removed"):
        data[begin:end] = b"\0" * (end - begin) if kind == "hole" else b""
        return kind, bytes(data)
    if kind == "garbled":
        data[begin] = chance.randrange(256)
        return kind, bytes(data)
    if kind == "nested":
        depth = chance.choice([10, 100_000])
        return kind, text.replace('"seq_id"', f'"more": {"[" * depth}{"]" * depth}, "seq_id"', 1).encode()
    if kind == "value":
        key, value = chance.choice(["seq_id", "qsl_idx", "data", "token_count"]), chance.choice(ODD_VALUES)
        at = text.index(f'"{key}" : ', begin if begin < len(text) // 2 else 0) + len(key) + 5
        end = min(at + text[at:].index(sign) for sign in (",", " }") if sign in text[at:])
        return kind, (text[:at] + value + text[end:]).encode(errors="surrogatepass")
    whole = bytes(data)
    return kind, chance.choice(
        {
            "appended": [whole + whole, whole + whole[:begin], whole[:begin] + whole, whole + b"\0" * 4096],
            "twice": [whole.replace(b"\n]", b",\n" + whole.split(b"\n")[1] + b"\n]").replace(b",,", b",")],
            "endings": [whole.replace(b"\n", b"\r\n"), whole.replace(b"\n", b""), whole.rstrip()],
            "encoded": [text.encode("utf-16"), text.encode("utf-8-sig"), b"", b"[]", b"{}", b"null", b"\xff" * 99],
            "truncated as for a submission": [whole[:900] + b"\n\n...\n\n" + whole[-900:]],
        }[kind]
    )


def test_a_spoiled_accuracy_log_is_refused_or_gives_its_own_tokens(tmp_path):
    chance, path = random.Random(SEED), tmp_path / ACCURACY_LOG
    text, tokens = accuracy_log(chance)
    for _ in range(COUNT * 4):
        kind, data = spoiled_accuracy_log(text, chance)
        path.write_bytes(data)
        for read in (read_accuracy_log, read_answers):
            try:
                entries = list(read(path))
            except RunFailed as error:
                assert error.cause and str(path) in error.what, kind
                f"{error.what}{error.cause}".encode()
            else:
                if read is read_accuracy_log and len(entries) >= len(tokens) and kind not in ("garbled", "value"):
                    assert {index: ids.tolist() for index, ids, _ in entries} == tokens, kind


READERS = {
    "performance": (DETAIL_LOG, read_performance),
    "version": (DETAIL_LOG, version),
    "whole": (DETAIL_LOG, lambda folder: require_whole(folder, Mode.ACCURACY)),
    "accuracy": (ACCURACY_LOG, lambda folder: list(read_accuracy_log(folder / ACCURACY_LOG))),
    "answers": (ACCURACY_LOG, lambda folder: read_answers(folder / ACCURACY_LOG)),
    "record": (RUN_FILE, lambda folder: read_record(folder / RUN_FILE, RunRecord)),
}


def a_loop(path):
    path.symlink_to(path.name)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, a_loop, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("nowhere")],
)
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path, reader, make):
    name, read = READERS[reader]
    make(tmp_path / name)
    with pytest.raises(CmError) as failure:
        read(tmp_path)
    assert failure.value.cause and str(tmp_path / name) in failure.value.what


def test_a_link_to_a_log_is_read(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"".join(performance_log("Server")))
    (tmp_path / DETAIL_LOG).symlink_to("elsewhere")
    assert read_performance(tmp_path).valid


def test_no_digest_is_made_of_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        sha256_of(tmp_path / "pipe")


def test_a_tree_with_pipes_is_read_to_its_end(tmp_path):
    reader = Reader(tmp_path)
    for name in (DETAIL_LOG, "user.conf", "measurements.json"):
        os.mkfifo(tmp_path / name)
    assert reader.performance(tmp_path, None) is reader.accuracy(tmp_path, None) is None
    assert (reader.text(tmp_path / "user.conf"), dict(reader.json(tmp_path / "measurements.json"))) == ("", {})
    assert json.dumps([problem.code for problem in reader.problems]) == (
        '["LOG-UNREADABLE", "LOG-UNREADABLE", "FILE-UNREADABLE", "FILE-UNREADABLE"]'
    )


# --- the times at which LoadGen issues queries, held against what LoadGen itself generates and does


@pytest.mark.parametrize(("rate", "duration_ms"), [(250.0, 900), (97.3, 1)])
def test_they_are_those_of_loadgen_to_the_nanosecond(tmp_path, make_settings, rate, duration_ms):
    """LoadGen logs how many queries it generated, and when the one after the last would be issued."""
    with FakeVllm() as server:
        settings = make_settings(server.endpoint, "Server", "performance", target_qps=rate)
        conf = re.sub(r"min_duration = \d+", f"min_duration = {duration_ms}", settings.user_conf)
        run(
            replace(settings, user_conf=re.sub(r"min_query_count = \d+", "min_query_count = 2", conf)), tmp_path / "run"
        )
    log = (tmp_path / "run" / DETAIL_LOG).read_text()
    count, end_ns = (
        int(re.search(rf'"{key}", "value": (\d+)', log)[1])
        for key in ("generated_query_count", "generated_query_duration")
    )
    seed = settings.terms.seeds.schedule
    assert FullLength(duration_ms / 1000, seed, whole=settings.samples).queries(rate) == count
    assert round(arrivals(rate, seed, count + 1)[-1] * 1e9) == end_ns


def test_a_schedule_is_stretched_by_the_rate_and_the_longer_one_begins_with_the_shorter_one():
    assert arrivals(20.0, 7, 1000) == pytest.approx(arrivals(40.0, 7, 1000) * 2, abs=1e-5)
    assert np.array_equal(arrivals(20.0, 7, 1000)[:10], arrivals(20.0, 7, 10))
    assert arrivals(20.0, 7, 1).tolist() == [0.0]
    assert 1000 / arrivals(20.0, 7, 1000)[-1] == pytest.approx(20, rel=0.1)


def test_a_run_ends_with_the_first_query_at_or_after_its_time():
    times = arrivals(20.0, 7, 3000)
    count = FullLength(60.0, 7).queries(20.0)
    assert times[count - 2] < 60 <= times[count - 1]
    assert FullLength(60.0, 7, whole=1000).queries(20.0) == 2000
