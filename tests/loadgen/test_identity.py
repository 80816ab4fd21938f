"""A kept result is recognised by content: after it was copied or moved, and after a restart under another CM home."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from fake_vllm import Behaviour, FakeVllm
from msgspec.structs import replace
from test_measurement import handed_over

from cm4vllm.common.errors import ServerUnreachable, ServerUnsuitable
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.serving.probing.node_names import network_name, node_names

sys.path.insert(0, str(Path(__file__).parent))


from cm4vllm.common.records import read_record, write_record
from cm4vllm.loadgen.identity import differences, serves_alike, settings_sha256
from cm4vllm.loadgen.measurement import RunInputs, earlier_run, measure, settings_of
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.server import ContainerRecord, ServerRecord


class Place:
    """A CM home with a model, a dataset and a vLLM in its cache, and a folder of results beside it."""

    def __init__(self, folder: Path, dataset) -> None:
        self.home, self.results = folder / "CM", folder / "results"
        self.model = self.home / "cache" / folder.name / "my-model"
        self.template = self.home / "template.jinja"
        if not self.home.exists():
            self.model.mkdir(parents=True)
            self.template.write_text("{{ messages }}")
            shutil.copy(dataset.path, self.home / "cnn_eval.json")
        self.dataset = replace(dataset, path=str(self.home / "cnn_eval.json"), source=f"local file in {folder}")

    def server(self, endpoint: str, **more) -> ServerRecord:
        argv = [str(self.home / "venv/bin/python"), "-m", "vllm.entrypoints.cli.main", "serve", str(self.model)]
        argv += ["--port", endpoint.rpartition(":")[2], "--max-num-seqs", "8", f"--chat-template={self.template}"]
        plugin = {"PYTHONPATH": f"{self.home}/serving/options/fp8_plugin"}
        record = ServerRecord(
            endpoint=endpoint,
            model_name="tiny",
            max_model_len=2048,
            version="0.32.0",
            owned=True,
            argv=[*argv, "--download-dir", str(self.home / "downloads")],
            env={**plugin, "RAY_ADDRESS": "10.0.0.1:6379", "OMP_NUM_THREADS": "1"},
            packages={"vllm": "0.32.0"},
            log=str(self.results / "server.log"),
            supervisor_pid=os.getpid(),
            started_at=f"when {self.home} was used",
            ready_after_s=1.0,
        )
        return replace(record, **more)

    def inputs(self, server: ServerRecord) -> RunInputs:
        """Write the records that recipes hand over."""
        model = ModelRecord(
            name="tiny",
            path=str(self.model),
            source=f"local folder {self.model}",
            sha256="12" * 32,
            min_tokens=2,
            recipe={"files": f"config.json:1:{self.home}"},
        )
        env = handed_over(self.home, self.dataset)
        write_record(self.home / "model.json", model)
        write_record(self.home / "server.json", server)
        own = {"CM_MLPERF_LOADGEN_MODE": "accuracy", "CM_MLPERF_LOADGEN_TARGET_QPS_SOURCE": str(self.home)}
        return RunInputs.of({**env, **own, "CM_MLPERF_OUTPUT_DIR": str(self.results / "accuracy")})


def test_a_result_is_recognised_with_its_model_at_another_place(tmp_path, dataset):
    first = Place(tmp_path / "first", dataset)
    with FakeVllm() as server:
        made, _ = measure(first.inputs(first.server(server.endpoint)))
        assert len(server.bodies) == 64
    for name, put in (("copied", shutil.copytree), ("moved", shutil.move)):
        put(tmp_path / "first", tmp_path / name)
        (tmp_path / name / "CM" / "cache" / "first").rename(tmp_path / name / "CM" / "cache" / name)
        place = Place(tmp_path / name, dataset)
        path = tmp_path / name / "results" / "accuracy" / RUN_FILE
        asked = place.inputs(place.server("http://127.0.0.1:9"))  # another server process, at another port
        kept = earlier_run(path.parent, settings_of(asked))[0]
        assert kept == read_record(path, RunRecord)
        assert (kept.started_at, kept.files, kept.client) == (made.started_at, made.files, made.client)
        assert kept.settings_sha256 == made.settings_sha256 == settings_sha256(kept.settings)
        # The later steps read the model and the dataset where they are now.
        assert kept.settings.model.path == str(place.model)
        assert Path(kept.settings.dataset.path).is_file()
        assert str(tmp_path / "first") not in str(kept.settings.server.argv)
        assert kept.settings.server.started_at == made.settings.server.started_at
        # The address stays that of the server that was measured: this one may have measured nothing.
        words, port = kept.settings.server.argv, made.settings.server.endpoint.rpartition(":")[2]
        assert words[words.index("--port") + 1] == port
        assert words[5:] == ["--port", port, *place.server("http://127.0.0.1:9").argv[7:]]


def test_whatever_the_result_depends_on_makes_another_one(tmp_path, dataset, make_settings):
    place, endpoint = Place(tmp_path / "here", dataset), "http://127.0.0.1:1"
    settings = make_settings(endpoint, "Offline", "accuracy")
    assert settings_sha256(settings) != settings_sha256(make_settings("http://127.0.0.1:2", "Offline", "accuracy"))
    # Of a model without files what is said of it counts.
    other = replace(settings, model=replace(settings.model, source="elsewhere"))
    assert not settings.model.sha256 and settings_sha256(settings) != settings_sha256(other)
    server, model = place.server(endpoint), replace(settings.model, path=str(place.model), sha256="12" * 32)
    settings = replace(settings, server=server, dataset=place.dataset, model=model)
    before = settings_sha256(settings)
    assert settings_sha256(settings) == before
    option = [word.replace("8", "9") if word == "8" else word for word in server.argv]
    for changed in (
        {"dataset": replace(place.dataset, sha256="34" * 32)},
        {"model": replace(model, sha256="34" * 32)},
        {"target_qps": 13.0},
        *(
            {"server": replace(server, **change)}
            for change in (
                {"packages": {"vllm": "0.33.0"}},
                {"argv": option},
                {"env": {**server.env, "OMP_NUM_THREADS": "2"}},
                {"env": {"OMP_NUM_THREADS": "1"}},  # without the plugin
                {"members": [server]},
            )
        ),
    ):
        assert settings_sha256(replace(settings, **changed)) != before, changed
    now = replace(settings, server=replace(server, argv=option))
    assert differences(settings, now) == ["server.options.max-num-seqs: 8, now 9"]
    place.template.write_text("{{ other }}")
    assert settings_sha256(settings) != before


def test_where_our_server_listens_is_no_part_of_it(make_settings):
    def owned(port, batch):
        settings = make_settings(f"http://127.0.0.1:{port}", "Offline", "accuracy", max_in_flight=4)
        argv = ["vllm", "serve", "--port", str(port), f"--host=h{port}", "--max-num-seqs", str(batch)]
        return replace(settings, server=replace(settings.server, owned=True, argv=argv, supervisor_pid=port))

    assert settings_sha256(owned(1, 8)) == settings_sha256(owned(2, 8))
    assert settings_sha256(owned(1, 8)) != settings_sha256(owned(1, 9))


def test_the_image_counts_and_the_places_that_are_mounted_do_not(tmp_path, dataset, make_settings):
    settings = make_settings("http://127.0.0.1:1", "Offline", "accuracy")

    def inside(**changes):
        given = {"engine": "podman", "engine_version": "5", "image": "vllm:1", "digest": "sha256:1", "reference": "1"}
        container = ContainerRecord(**{**given, **changes})
        return replace(settings, server=Place(tmp_path, dataset).server("http://127.0.0.1:1", container=container))

    assert differences(inside(), inside(mounts=["/model:ro"], passed=["HF_TOKEN"])) == []
    assert settings_sha256(inside()) == settings_sha256(inside(mounts=["/model:ro"]))
    assert differences(inside(), inside(digest="sha256:2")) == ["server.container.digest: sha256:1, now sha256:2"]
    assert settings_sha256(inside()) != settings_sha256(inside(options=["--ipc=host"]))


def test_what_has_changed_is_named(make_settings):
    before = make_settings("http://127.0.0.1:1", "Offline", "accuracy", max_in_flight=4)
    assert differences(before, before) == []
    now = replace(before, max_in_flight=5, model=replace(before.model, source="elsewhere", sha256="12" * 32))
    assert differences(before, now)[0] == "max_in_flight: 4, now 5"
    assert any(difference.startswith("model.sha256 differs") for difference in differences(before, now))


def test_a_server_is_known_before_it_is_started(tmp_path, dataset):
    place = Place(tmp_path, dataset)
    started = place.server("http://127.0.0.1:1234")
    planned = replace(
        started,
        **{"endpoint": "", "max_model_len": 0, "version": "", "log": "", "supervisor_pid": None},
        argv=[word.replace("1234", "{port}") for word in started.argv],
    )
    assert serves_alike(planned, started, str(place.model))
    for change in (
        {"packages": {"vllm": "0.33.0"}},
        {"env": {}},
        {"argv": [*planned.argv, "--enforce-eager"]},
        {"members": [planned]},
        {"model_name": "other"},
    ):
        assert not serves_alike(replace(planned, **change), started, str(place.model)), change


# --- a system on another machine: LoadGen's query dispatch library asks each node for its name


def listing(*names: str) -> str:
    return json.dumps({"data": [{"id": name} for name in names]})


def test_a_run_over_a_network_has_the_name_that_its_node_gives_and_no_other_asks(tmp_path, make_settings):
    def system(name, *, network):
        record = run(make_settings(server.endpoint, "Offline", "performance", network=network), tmp_path / name)
        assert record.client.completed == record.client.requests and record.settings.network is network
        return read_detail_log(tmp_path / name / DETAIL_LOG).values["sut_name"]

    with FakeVllm() as server:  # which lists no models
        assert system("other", network=False) == "PySUT"
        with pytest.raises(ServerUnsuitable, match="not a server that can be measured"):  # before LoadGen starts
            system("refused", network=True)
        server.behaviour.metrics = lambda: listing("tiny", "rack-1")
        assert system("named", network=True) == "Network SUT: rack-1"


def test_each_node_is_asked_and_no_two_have_one_name(make_settings):
    names = iter(())
    behaviour = Behaviour(metrics=lambda: listing("tiny", *next(names)))
    with FakeVllm(behaviour) as first, FakeVllm(behaviour) as other:
        server = make_settings(first.endpoint, "Offline", "performance").server
        both = replace(server, replicas=[other.endpoint])
        names = iter([["a"], ["b"], [], ["b"], ["a"], ["a"]])
        assert network_name(both) == "Network SUT: a, b"
        assert node_names(both) == ["tiny", "b"]
        with pytest.raises(ServerUnsuitable, match="the same name a") as refused:
            node_names(both)
    assert "--served-model-name tiny NODE" in refused.value.remedy
    with pytest.raises(ServerUnreachable):
        network_name(server)
