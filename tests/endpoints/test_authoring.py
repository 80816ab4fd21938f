"""The text of a bundle on how its server was started, and the words on a warm-up."""

import pytest
from made_points import BENCHMARK, DESCRIPTION
from msgspec.structs import replace
from test_curve_plan import measured

from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import write_json, write_text
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.common.folders.ownership_notes import note_finished
from cm4vllm.common.records import read_record, write_record
from cm4vllm.endpoints import authoring
from cm4vllm.endpoints.authoring import (
    BundleInputs,
    _no_warm_up_note,
    _parallel,
    _starts,
    author_and_build,
    require_target,
)
from cm4vllm.endpoints.bundle import BUNDLE, CheckerInstallation
from cm4vllm.endpoints.records import PointRecord
from cm4vllm.records.assets import ModelRecord
from cm4vllm.results.endpoints.curves import POINT_FILE

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


def test_the_sizes_of_a_server_s_groups_are_those_of_its_command_line(tmp_path):
    (record,) = records(tmp_path, ["vllm", "serve", "m", "--tensor-parallel-size=2", "-dp", "4"])
    assert _parallel(record) == {"tensor_parallel": 2, "data_parallel": 4}


def test_the_words_on_a_warm_up_count_what_the_server_has_answered_before(tmp_path):
    first, second, third = records(tmp_path, ["vllm"], ["vllm"], ["vllm"])
    other = replace(first, server=replace(first.server, started_at="2026-11-24T09:00:00+00:00"))
    assert "answered 0 requests of 0 probes and points" in _no_warm_up_note(first, [first, second, third])
    words = _no_warm_up_note(third, [first, second, third, other])
    assert f"answered {first.run.samples + second.run.samples:,} requests of 2 probes and points" in words
    scored = replace(first, run=replace(first.run, scored=BENCHMARK.scored))
    assert f"answered {first.run.samples + BENCHMARK.accuracy_samples:,} requests of 1" in _no_warm_up_note(
        second, [scored]
    )
    assert "not known" in _no_warm_up_note(replace(first, server=replace(first.server, started_at="")), [])


def test_files_of_the_user_beside_and_in_the_points_are_kept(tmp_path, monkeypatch, capsys):
    """The official builder is left out: what it would write, the power of the points, is written here."""
    points = tmp_path / "points"
    (record,) = records(points, ["vllm"])
    node = {"host_processor_vcpu_count": 8, "driver": "580.65.06", "filesystem": "ext4"}
    write_record(points / "point-1" / POINT_FILE, replace(record, node=node))
    note_finished(points / "point-1")
    mine = ("shared/docs/README.md", "shared/src/vllm/README.md", "power.json", "point-1/system_desc.json")
    for name in mine:
        write_text(points / name, "mine")
    write_json(tmp_path / "d.json", DESCRIPTION)
    write_record(tmp_path / "m.json", MODEL)
    write_record(tmp_path / "c.json", CheckerInstallation(python="python", version="1"))
    seen = []

    def build(checker, runs, target, *, source, documentation, power, **others):
        write_text(power, "{}")
        seen.append(((source / "vllm" / "README.md").read_text(), (documentation / "README.md").read_text()))
        return target

    monkeypatch.setattr(authoring, "build_bundle", build)
    monkeypatch.setattr(authoring, "write_payloads", lambda checker, runs, target: target)
    paths = {f"{name}_record": str(tmp_path / f"{name[0]}.json") for name in ("model",)}
    inputs = BundleInputs(
        points=str(points), description=str(tmp_path / "d.json"), checker=str(tmp_path / "c.json"), **paths
    )
    for filled_in in (False, True):
        if filled_in:
            (points / "submitter.template.yaml").write_text("mine")
        assert author_and_build(inputs) == tmp_path / "bundle"
    kept = {path.relative_to(points).as_posix() for path in points.rglob("*") if path.is_file() and is_mine(path)}
    assert kept == set(
        (
            "kept-power.json point-1/kept-system_desc.json shared/docs/README.md "
            "shared/src/vllm/README.md submitter.template.yaml"
        ).split()
    )
    assert seen[0] == seen[1] and "mine" not in str(seen)
    assert capsys.readouterr().out.count("it is now kept-") == 2


def is_mine(path):
    return path.read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.txt", "org/a/notes.txt", "org/README.md", "point.txt"])
def test_a_folder_that_is_no_bundle_is_refused_at_the_place_of_a_bundle(tmp_path, name):
    write_text(tmp_path / "bundle" / name, "mine")
    with pytest.raises(UsageError, match="is not replaced by a bundle"):
        require_target(BundleInputs(points=str(tmp_path / "points")))
    assert (tmp_path / "bundle" / name).read_text() == "mine"


@pytest.mark.parametrize("ours", [True, False])
def test_notes_in_an_earlier_bundle_and_the_bundle_of_another_organisation_are_kept(tmp_path, ours):
    """Without a note a bundle may be of an earlier version or of somebody else: it is kept as a whole."""
    write_text(tmp_path / "bundle" / "org" / "results" / "point.yaml", "theirs")
    if ours:
        note_finished(tmp_path / "bundle")
    write_text(tmp_path / "bundle" / "org" / "notes.txt", "mine")
    require_target(BundleInputs(points=str(tmp_path / "points")))
    with staged_folder(tmp_path / "bundle", BUNDLE) as staging:
        write_text(staging / "new" / "results" / "point.yaml", "new")
    kept = {path.relative_to(tmp_path / "kept-bundle").as_posix() for path in (tmp_path / "kept-bundle").rglob("*.*")}
    assert kept == {"org/notes.txt"} | (set() if ours else {"org/results/point.yaml"})
    assert [path.name for path in (tmp_path / "bundle").iterdir()] == ["new"]
