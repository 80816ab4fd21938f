"""The recipes of LoadGen runs and searches, run alone: plans bring what is missing, and refuse what runs refuse."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from cm4vllm.common.errors import CmError
from cm4vllm.common.folders.ownership_notes import note_finished
from cm4vllm.common.records import read_record, write_record
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.plan.chain import adr_targets
from cm4vllm.engine.plan.plan import plan
from cm4vllm.engine.run.execution import run
from cm4vllm.engine.run.request import Request
from cm4vllm.engine.run.session import Session
from cm4vllm.records.assets import DatasetRecord
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.searches.rate_search import SEARCH_FILE, SearchRecord
from cm4vllm.records.searches.settings_search import SETTINGS_FILE, SettingsRecord
from listing_server import listing_url
from recipes import recipe

ROOT = Path(__file__).resolve().parents[2]
RUN, SEARCH = "app,mlperf,inference,vllm", "find,mlperf,inference,target-qps"
SETTINGS = "find,mlperf,inference,server-settings"
SERVER = "http://127.0.0.1:9"


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A session in an empty CM home with the recipes of this checkout, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    repo = SimpleNamespace(path=str(ROOT), path_with_prefix=str(ROOT), meta={"alias": "cm4vllm", "uid": ""})
    cmind = SimpleNamespace(repos=SimpleNamespace(lst=[repo]), repos_path=str(tmp_path), index=None)
    catalogue = Catalogue(cmind)
    automation = SimpleNamespace(
        cmind=cmind, path=str(ROOT / "automation" / "script"), adr_targets=lambda i: adr_targets(catalogue, i["tags"])
    )
    made = Session(automation, {})
    made.catalogue = catalogue
    return made


def asked(tags, **flags):
    return Request.of({"tags": tags, **flags}, str(Path.cwd()))


def chain(session, tags, **flags):
    """Return the tags of the dependencies of a plan, those that install Python packages aside."""
    root = plan(session, asked(tags, **flags))
    if (failure := root.failure()) is not None:
        raise failure
    return [node.tags for node in root.children if not node.tags.startswith("get,generic-python-lib")]


def everything(model, dataset, round_="_r6.1", *, sentences=None):
    """Return the dependencies of a run; answers of the benchmark's own dataset are split into sentences."""
    return [
        f"get,mlperf,inference,loadgen,{round_}",
        *(["get,nltk-data"] if sentences or (sentences is None and dataset == "_mlcommons") else []),
        f"get,ml-model,{model}",
        f"get,dataset,{dataset}",
        "generate,user-conf,mlperf,inference",
        "run,vllm-server",
    ]


GPT_OSS = {"model": "gpt-oss-120b", "mode": "performance", "target_qps": "5"}


@pytest.mark.parametrize(
    ("tags", "flags", "expected"),
    [
        ("", {}, everything("_tiny", "_tiny")),
        (",_r5.1", {}, everything("_tiny", "_tiny", "_r5.1")),
        ("", {"round": "v5.1"}, everything("_tiny", "_tiny", "_r5.1")),
        (",_dummy", {}, everything("_dummy.llama3.1-8b", "_tiny")),
        (",_hf.ORG/NAME", {}, everything("_hf.ORG/NAME", "_mlcommons")),
        (",_dummy", GPT_OSS, everything("_dummy.gpt-oss-120b", "_performance,_tiny")),
        (
            ",_dummy",
            {**GPT_OSS, "compliance_test": "TEST07"},
            everything("_dummy.gpt-oss-120b", "_compliance.TEST07,_tiny"),
        ),
    ],
)
def test_a_run_alone_gets_the_model_its_dataset_the_rounds_loadgen_and_a_server(session, tags, flags, expected):
    assert chain(session, RUN + tags, **flags) == expected


@pytest.mark.parametrize(("flags", "asks"), [({"model": "gpt-oss-120b"}, False), ({"model": "llama2-70b-99.9"}, True)])
def test_an_accuracy_run_alone_gets_the_sentence_model_that_its_scores_need(session, flags, asks):
    assert ("get,nltk-data" in chain(session, f"{RUN},_hf.ORG/NAME", **flags)) is asks


def test_a_server_alone_makes_the_stand_in_that_is_named(session):
    assert "get,ml-model,_tiny" in chain(session, "run,vllm-server", vllm_model_name="cm4vllm-tiny")
    assert not [tags for tags in chain(session, "run,vllm-server", vllm_model_name="ORG/NAME") if "ml-model" in tags]


@pytest.mark.parametrize(("sentences", "asks"), [("punkt_tab", True), ("punkt-untrained", False)])
def test_a_given_dataset_says_whether_its_scores_need_the_sentence_model(session, tmp_path, sentences, asks):
    record = DatasetRecord(
        name="x", path="/x", source="x", sha256="", samples=1, max_input_tokens=1, sentences=sentences
    )
    write_record(tmp_path / "dataset.json", record)
    given = {"dataset_record": str(tmp_path / "dataset.json")}
    assert ("get,nltk-data" in chain(session, RUN, **given)) is asks


def test_a_search_for_a_rate_alone_gets_the_same_but_no_user_conf(session):
    expected = everything("_hf.ORG/NAME", "_mlcommons", "_r6.0", sentences=False)
    expected.remove("generate,user-conf,mlperf,inference")
    assert chain(session, f"{SEARCH},_hf.ORG/NAME,_r6.0", target_qps="5") == expected


@pytest.mark.parametrize(("tags", "flags"), [(RUN, {}), (SEARCH, {"target_qps": "5"})])
def test_where_an_earlier_result_may_be_kept_the_server_is_described_before_it_is_started(session, tags, flags):
    out = Path.cwd() / "out"
    for place in (out / "run.json", out / "search.json", out.with_name("out.server") / "server.json"):
        place.parent.mkdir(exist_ok=True)
        place.write_text("{}")
    note_finished(out)
    root = plan(session, asked(tags, output_dir=str(out), **flags))
    described, server = [node for node in root.children if node.tags.startswith("run,vllm-server")]
    assert (described.tags, described.only_if) == ("run,vllm-server,_describe", ())
    assert server.only_if == ("depends on CM_VLLM_SERVER_RECORD, which run,vllm-server sets",)
    assert chain(session, tags, output_dir="other", **flags)[-1] == "run,vllm-server"


def test_a_search_over_server_settings_alone_gets_what_its_servers_need(session):
    brought = ["get,mlperf,inference,loadgen,_r6.1", "get,ml-model,_tiny", "get,dataset,_tiny"]
    assert chain(session, SETTINGS, search="max-num-seqs:64..128") == ["detect,gpu", "get,vllm", *brought]
    simulated = chain(session, SETTINGS, search="max-num-seqs:64..128", rehearse="4xh100-llama2-70b-fp8")
    assert simulated == [brought[0], "get,ml-model,_dummy.llama3.1-8b", brought[2]]


def test_adr_names_model_and_options_as_the_flags_do(session):
    given = {"ml-model": {"tags": "_hf.ORG/NAME"}, "vllm-server": {"max_num_seqs": "64"}}
    assert chain(session, RUN, adr=given) == everything("_hf.ORG/NAME", "_mlcommons")
    with pytest.raises(CmError, match="--max_num_seqs=0 is not usable"):
        chain(session, RUN, adr={"vllm-server": {"max_num_seqs": "0"}})


def test_a_given_server_is_asked_before_anything_is_downloaded(session):
    expected = everything("_tiny", "_tiny")
    trains = {"CM_VLLM_PYTHON_BIN_WITH_PATH": "python"}  # the tiny model: none is installed for a given server
    others = [entry for entry in expected if "server" not in entry]
    assert chain(session, RUN, api_server=listing_url(), env=trains) == ["run,vllm-server", *others]
    named = chain(session, RUN, api_server=listing_url(), vllm_model_name="ORG/NAME")
    assert named[0] == "run,vllm-server" and named[2:5] == [
        "get,nltk-data",
        "get,ml-model,_served.ORG/NAME",
        "get,dataset,_mlcommons",
    ]


def test_what_the_main_job_gives_is_not_got_again(session):
    given = {
        "CM_MLPERF_RESULTS_DIR": "/results",
        "CM_MLPERF_OUTPUT_DIR": "/results/run",
        "CM_ML_MODEL_RECORD": "/model.json",
        "CM_DATASET_RECORD": "/dataset.json",
        "CM_VLLM_SERVER_RECORD": "/server.json",
        "CM_MLPERF_LOADGEN_VERSION": "6.0.17",
    }
    assert chain(session, RUN, env=given) == ["generate,user-conf,mlperf,inference"]
    assert chain(session, RUN, env={**given, "CM_MLPERF_USER_CONF": "/user.conf"}) == []


def test_the_server_gets_the_models_record_in_place_of_its_name(session):
    root = plan(session, asked(RUN, vllm_model_name="ORG/NAME", output_dir="out"))
    (server,) = [node for node in root.children if node.tags == "run,vllm-server"]
    assert not [node for node in server.children if node.tags.startswith("get,ml-model")]
    assert server.env == {"CM_VLLM_SERVER_BACKGROUND": "yes"}


REFUSED = [
    (RUN, {"mode": "performance"}, "no target_qps for the Offline performance run"),
    (RUN, {"scenario": "Srver"}, "did you mean 'Server'?"),
    (RUN, {"model": "qwen3.6-27b"}, "cannot be run yet"),
    (RUN, {"user_conf": "/nowhere.conf"}, "cannot read the user.conf /nowhere.conf"),
    (RUN, {"max_model_len": "5"}, "--max_model_len=5 is too short"),
    (RUN, {"dataset_path": "/nowhere.json"}, "--dataset_path is given, but no model"),
    (f"{RUN},_path.FOLDER", {}, "FOLDER"),
    (RUN, {"api_server": SERVER, "replicas": "2"}, "--replicas cannot be given with --api_server"),
    ("run,vllm-server", {"max_num_seqs": "0"}, "--max_num_seqs=0 is not usable"),
    ("run,vllm-server,_path.FOLDER", {}, "FOLDER"),
    (SETTINGS, {}, "is not given --search"),
    (SEARCH, {}, "no target_qps for the Server performance run"),
    (SEARCH, {"scenario": "Offline", "target_qps": "5"}, "the Offline scenario has no rate to search for"),
    ("generate,user-conf,mlperf,inference", {"scenario": "Server"}, "no target_qps for the Server accuracy run"),
]


@pytest.mark.parametrize(("tags", "flags", "words"), REFUSED)
def test_the_plan_refuses_what_the_run_refuses_in_the_same_words_before_any_dependency(session, tags, flags, words):
    with pytest.raises(CmError) as planned:
        chain(session, tags, **flags)
    with pytest.raises(CmError) as done:
        run(session, asked(tags, **flags))
    assert str(planned.value) == str(done.value)
    assert words in str(planned.value)
    assert not list(Path.cwd().glob("mlperf-*"))


def test_links_share_the_variations_of_the_main_job():
    main = recipe("run-mlperf-inference-app").variations
    shared = {name for name, raw in main.items() if raw.get("group") in ("model-source", "benchmark-version")}
    for alias in ("app-mlperf-inference-vllm", "find-mlperf-inference-target-qps", "find-vllm-server-settings"):
        assert recipe(alias).variations.keys() == shared, alias


#: Seconds of a first start: vLLM is installed, the dataset made, the server started.
START_S = 900


@pytest.mark.e2e
@pytest.mark.xdist_group("vllm-1")  # its first test, and so the first to use the CM home of a new checkout
def test_the_bare_command_leads_to_its_table_and_is_kept_after(cm):
    words = ("run", "script", f"--tags={RUN}", "--quiet")
    started = cm.start(*words)
    started.wait_for("Offline accuracy run", START_S)
    done = started.finish(START_S)
    assert done.code == 0, done.output
    folder = cm.cwd / "mlperf-run" / "Offline" / "accuracy"
    assert "run               metric       samples/s  result" in done.output
    assert "Offline accuracy  256 answers" in done.output
    assert f"logs:    {folder}" in done.output
    record = read_record(folder / RUN_FILE, RunRecord)
    assert (record.settings.model.name, record.settings.samples) == ("cm4vllm-tiny", 256)
    assert (folder / "user.conf").is_file() and not list(folder.parent.glob("*.user.conf"))
    started.no_orphans()
    assert "vLLM 0." in done.output and "serves cm4vllm-tiny at" in done.output
    again = cm(*words, timeout_s=START_S)
    assert again.code == 0 and f"kept: {folder} holds this run" in again.output, again.output
    assert "serves cm4vllm-tiny at" not in again.output, "a kept run needs no server"
    kept = read_record(folder / RUN_FILE, RunRecord)
    assert (kept.started_at, kept.files) == (record.started_at, record.files)
    assert kept.settings.server == record.settings.server, "another server has measured nothing"


@pytest.mark.e2e
def test_a_search_over_server_settings_alone_ends_with_its_table(cm):
    """On servers with the times of another machine: it takes little of this one's."""
    flags = ("--rehearse=4xh100-llama2-70b-fp8", "--search=max-num-seqs:64..128", "--search_minutes=0.5")
    started = cm.start("run", "script", f"--tags={SETTINGS}", *flags, "--quiet")
    started.wait_for("Offline performance run", START_S)
    done = started.finish(START_S)
    assert done.code == 0, done.output
    assert "as without the search" in done.output.partition("options")[2], "no table"
    started.no_orphans()
    record = read_record(cm.cwd / "mlperf-search" / "server-settings" / SETTINGS_FILE, SettingsRecord)
    assert (record.candidates, record.scenarios, record.starts >= 1) == (3, ["Offline"], True)
    (score,) = record.evaluations[0].scenarios
    assert (score.unit, score.value > 0, bool(record.simulated)) == ("tokens/s", True, True)


@pytest.mark.e2e
@pytest.mark.long
def test_a_search_for_a_rate_alone_ends_with_the_rate_and_is_kept_after(cm):
    words = ("run", "script", f"--tags={SEARCH}", "--scenario=Server", "--target_qps=40", "--quiet")
    started = cm.start(*words)
    started.wait_for("search for the Server rate from", START_S)
    done = started.finish(START_S)
    assert done.code == 0, done.output
    folder = cm.cwd / "mlperf-search" / "Server"
    record = read_record(folder / SEARCH_FILE, SearchRecord)
    assert f"search for the Server rate: {record.words}" in " ".join(done.output.split()), done.output
    assert (record.scenario, record.benchmark, record.rehearsal) == ("Server", "llama3.1-8b", True)
    assert record.rate > 0
    assert len(record.probes) == len(list(folder.glob("*/probe.json"))) > 1
    started.no_orphans()
    again = cm(*words, timeout_s=START_S)
    assert again.code == 0 and f"kept: {folder} holds this search" in again.output, again.output
    assert "serves cm4vllm-tiny at" not in again.output, "a kept search needs no server"
    assert read_record(folder / SEARCH_FILE, SearchRecord) == record
