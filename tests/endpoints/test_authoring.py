"""The text of a bundle on how its server was started, and the words on a warm-up."""

from made_points import BENCHMARK
from msgspec.structs import replace
from test_curve_status import measured

from cm4vllm.common.records import read_record
from cm4vllm.endpoints.authoring import _starts, _warmed
from cm4vllm.endpoints.records import POINT_FILE, PointRecord
from cm4vllm.records.assets import ModelRecord

MODEL = ModelRecord(name="m", path="/srv/m", source="made", sha256="")


def records(folder, *argvs):
    made = []
    for number, argv in enumerate(argvs, 1):
        measured(folder / f"point-{number}", number)
        record = read_record(folder / f"point-{number}" / POINT_FILE, PointRecord)
        server = replace(record.server, argv=argv, started_at="2026-11-24T10:00:00+00:00")
        made.append(replace(record, server=server, started_at=f"2026-11-24T1{number}:00:00+00:00"))
    return made


def test_servers_of_one_command_line_are_one_whatever_their_ports(tmp_path):
    command = ["vllm", "serve", "/srv/m", "--port"]
    lines = list(_starts(records(tmp_path, [*command, "1"], [*command, "2"]), MODEL))
    assert lines == ["The server was started by", "", '    vllm serve "${MODEL_DIR:?}"', ""]


def test_each_command_line_names_its_points(tmp_path):
    lines = list(_starts(records(tmp_path, ["vllm"], ["vllm", "--port=3", "--x=1"], ["vllm"], []), MODEL))
    assert lines[0] == "The server for the points at concurrency 1, 9 was started by"
    assert lines[4:7] == ["The server for the points at concurrency 3 was started by", "", "    vllm \\\n    --x=1"]
    assert lines[-2].endswith("was not started by cm4vllm.")


def test_the_words_on_a_warm_up_count_what_the_server_has_answered_before(tmp_path):
    first, second, third = records(tmp_path, ["vllm"], ["vllm"], ["vllm"])
    other = replace(first, server=replace(first.server, started_at="2026-11-24T09:00:00+00:00"))
    assert "answered 0 requests of 0 probes and points" in _warmed(first, [first, second, third])
    words = _warmed(third, [first, second, third, other])
    assert f"answered {first.run.samples + second.run.samples:,} requests of 2 probes and points" in words
    scored = replace(first, run=replace(first.run, scored=BENCHMARK.scored))
    assert f"answered {first.run.samples + BENCHMARK.accuracy_samples:,} requests of 1" in _warmed(second, [scored])
    assert "not known" in _warmed(replace(first, server=replace(first.server, started_at="")), [])
