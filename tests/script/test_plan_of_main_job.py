"""The main job's --plan: the same steps as the run."""

import json
import re
from contextlib import contextmanager

import pytest
from tests.script.main_job import EXPORTS, JOB, ROOT, asked, executed, planned

from cm4vllm.campaign.ledger import State, read_ledger
from cm4vllm.common.errors import CmError, UsageError
from gpu_replay import Replay

#: A Python that can train the tiny model: none is installed where a server is given.
TRAINS = {"CM_VLLM_PYTHON_BIN_WITH_PATH": "/opt/vllm/bin/python"}
CASES = [
    ("_vllm", {}, 700),
    ("_vllm", {"scenario": "Server", "server_target_qps": "5"}, 700),
    ("_vllm,_all-scenarios", {"scenario": "Server"}, 700),
    ("_vllm,_accuracy-only", {"scenario": "server", "server_target_qps": "5"}, 700),
    ("_vllm,_performance-only", {"offline_target_qps": "9", "server_target_qps": "3"}, 700),
    ("_vllm", {"execution_mode": "valid"}, 700),
    ("_vllm", {"execution_mode": "valid"}, 100),
    ("_vllm", {"execution_mode": "valid", "offline_target_qps": "9"}, 100),
    ("_vllm", {"execution_mode": "valid", "rerun": "yes", "scenario": "Server"}, 700),
    ("_vllm,_find-performance", {}, 700),
    ("_vllm,_performance-only", {"power": "simulated"}, 700),
    ("_vllm", {"search": "max-num-seqs:64..256", "search_minutes": "5"}, 700),
    ("_vllm", {"model": "llama3.1-8b-edge", "execution_mode": "valid"}, 100),
    ("_vllm", {"api_server": "A_SERVER_URL", "env": TRAINS}, 700),
    ("_vllm,_tiny", {"api_server": "A_SERVER_URL", "vllm_model_name": "hub/name", "env": TRAINS}, 700),
    ("_vllm", {"vllm_model_name": "hub/name", "dataset_path": "FILES/cnn_eval.json"}, 700),
    ("_vllm", {"vllm_model_name": "llama-3.1-8b-instruct"}, 700),
    ("_vllm", {"vllm_model_name": "FILES/model"}, 700),
    ("_vllm,_mlcommons.llama-3.1-8b-instruct", {"quantize": "int8"}, 700),
    ("_vllm,_hf.hub/other", {"quantize": "_fp8", "calibration_path": "FILES/set.json"}, 700),
    ("_vllm,_hf.hub/other", {"vllm_model_name": "served", "api_server": "A_SERVER_URL"}, 700),
    ("_vllm", {"adr": {"ml-model": {"tags": "_hf.hub/name"}, "vllm-server": {"max_num_seqs": "64", "seed": "7"}}}, 700),
    ("_vllm,_tiny", {"adr": {"ml-model": {"tags": "_path.FILES/model"}}, "dataset_path": "FILES/cnn_eval.json"}, 700),
]


@pytest.mark.parametrize(("variations", "flags", "duration_s"), CASES)
def test_the_run_executes_the_steps_that_the_plan_lists(
    request, tmp_path, monkeypatch, files, variations, flags, duration_s
):
    if "power" in flags:
        request.getfixturevalue("own_network")
    job = asked(tmp_path, variations, flags, files)
    listed = planned(tmp_path, job)
    done = executed(monkeypatch, job, duration_s=duration_s)
    mode = flags.get("execution_mode", "test")
    entered = [state.last for state in read_ledger(tmp_path / "out" / mode).of_last_run]
    assert [(step.step, step.tags) for step in entered] == [(node.name, node.tags) for node in listed]
    taken = iter(done)
    for node, step in zip(listed, entered, strict=True):
        if step.state is State.LEFT_OUT:
            assert node.only_if, f"{node.name} is listed as certain"
            continue
        tags, env = next(taken)
        assert tags == node.tags
        for key, value in node.env.items():
            for name, exported in (("SUT_NAME", "sut"), ("ML_MODEL_NAME", "model"), ("MLPERF_POWER_SOURCE", "power")):
                value = value.replace(f"<<<CM_{name}>>>", exported)
            recorded = step.inputs[key]  # a path in the results folder is stored relative to it
            assert value == env[key] or value == f"<{key}>", key
            assert recorded == env[key] or str(tmp_path / "out" / mode / recorded) == env[key], key
    assert list(taken) == [], "not listed"


def test_the_runs_of_a_job_start_no_server_of_their_own(tmp_path, files):
    steps = planned(tmp_path, asked(tmp_path, "_vllm,_find-performance", {}, files))
    tags = [
        node.tags for step in steps[1:] for node in step.children if "app,mlperf" in step.tags or "find," in step.tags
    ]
    assert tags and not [each for each in tags if each.startswith("run,vllm-server")]


def test_the_tiny_model_of_a_given_server_is_copied_and_nothing_is_installed(tmp_path, files):
    steps = planned(tmp_path, asked(tmp_path, "_vllm,_tiny", {"api_server": "A_SERVER_URL"}, files))
    brought = [each.what for step in steps for node, _ in step.walk() for each in node.brings]
    assert "a copy of the tiny model of cm4vllm" in brought
    assert not [words for words in brought if words.startswith("vLLM")]


@pytest.mark.parametrize(("given", "downloads"), [("", True), ("punkt_tab.zip", False), ("nltk_data", False)])
def test_a_sentence_model_that_is_given_is_not_downloaded(tmp_path, monkeypatch, files, given, downloads):
    for module in ("campaign.job_checks.preflight", "accuracy.sentences"):  # the published model, to compare with
        monkeypatch.setattr(f"cm4vllm.{module}.given_model", lambda path: {})
    (tmp_path / "nltk_data").mkdir()
    (tmp_path / "punkt_tab.zip").touch()
    flags = {"vllm_model_name": "hub/name", **({"nltk_data": str(tmp_path / given)} if given else {})}
    steps = planned(tmp_path, asked(tmp_path, "_vllm", flags, files))
    brought = [each.what for step in steps for node, _ in step.walk() for each in node.brings]
    assert any("sentence model" in words for words in brought) is downloads


def performance_targets(done):
    """Return the scenario and the target rate of each performance run."""
    runs = [env for tags, env in done if tags.startswith("app,") and env["CM_MLPERF_LOADGEN_MODE"] == "performance"]
    return [(env["CM_MLPERF_LOADGEN_SCENARIO"], env["CM_MLPERF_LOADGEN_TARGET_QPS"]) for env in runs]


def test_a_run_that_is_too_short_or_misses_a_limit_is_made_again(tmp_path, monkeypatch, files):
    flags = {"execution_mode": "valid", "find_target_qps": "no"}
    done = executed(monkeypatch, asked(tmp_path, "_vllm", flags, files), duration_s=100)
    assert performance_targets(done) == [("Offline", "10.8"), ("Offline", "10.8"), ("Server", "1.8")]
    flags = {"execution_mode": "valid", "scenario": "Server", "find_target_qps": "yes"}
    done = executed(monkeypatch, asked(tmp_path, "_vllm,_performance-only", flags, files), valid=False)
    assert performance_targets(done) == [("Server", "8.0"), ("Server", "7.0"), ("Server", "6.0")]


def test_a_valid_run_searches_for_the_rate_unless_one_setting_says_otherwise(tmp_path, files):
    def searches(**flags):
        nodes = planned(tmp_path, asked(tmp_path, "_vllm", {"execution_mode": "valid", **flags}, files))
        return [node.notes[0] for node in nodes if node.name.endswith(" search")]

    (note,) = searches()
    assert "takes 1,500 s, 2.5 full-length runs of 600 s at most" in note
    assert searches(server_target_qps="3") == searches(find_target_qps="no") == []
    assert searches(published="v5.1-redhat-llama3.1-8b-fp8-1xh100-server", machine="1xH100-SXM-80GB") == []


def test_a_valid_result_of_before_keeps_its_target(tmp_path, monkeypatch, files):
    folder = tmp_path / "out/valid/runs/sut/model/Server/performance"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    flags = {"execution_mode": "valid", "scenario": "Server", "find_target_qps": "yes"}
    request = asked(tmp_path, "_vllm,_performance-only", flags, files)
    done = executed(monkeypatch, request)
    (run,) = [env for tags, env in done if tags.startswith("app,")]
    assert (run["CM_MLPERF_LOADGEN_TARGET_QPS"], run["CM_MLPERF_LOADGEN_TARGET_QPS_SOURCE"]) == ("7.0", "before")
    left_out = [node.name for node in planned(tmp_path, request) if node.only_if]
    assert left_out == ["Offline rate", "Server search", "Server performance again", "Server performance again (2)"]
    again = asked(tmp_path, "_vllm,_performance-only", {**flags, "rerun": "yes"}, files)
    assert len([tags for tags, _ in executed(monkeypatch, again) if tags.startswith("app,")]) == 2


def test_the_settings_that_are_found_are_those_of_the_server_and_recorded(tmp_path, monkeypatch, files):
    exported = {
        "CM_VLLM_SERVER_EXTRA_ARGS": "--max-num-seqs=128",
        "CM_VLLM_SEARCHED_OPTIONS": "--max-num-seqs=128",
        "CM_VLLM_SEARCH_EVIDENCE": "Another may be better.",
    }
    monkeypatch.setitem(EXPORTS, "find,mlperf,inference,server-settings", exported)
    request = asked(tmp_path, "_vllm", {"search": "max-num-seqs:64..256"}, files)
    (node,) = [node for node in planned(tmp_path, request) if node.name == "server settings search"]
    assert "takes 1,800 s, at most" in node.notes[0]
    assert node.notes[-1].startswith("3 candidates, and the server as it is where it is none of them")
    done = executed(monkeypatch, request)
    (server,) = [env for tags, env in done if tags.startswith("run,vllm-server")]
    assert server["CM_VLLM_SERVER_EXTRA_ARGS"] == "--max-num-seqs=128"
    record = json.loads((tmp_path / "out/test/campaign.json").read_text())
    assert (record["searched_options"], record["search_evidence"]) == ("--max-num-seqs=128", "Another may be better.")


def test_without_the_checkers_source_a_rehearsal_leaves_the_checkers_out(tmp_path, monkeypatch, files):
    request = asked(tmp_path, "_vllm", {}, files)
    done = executed(monkeypatch, request, fails="get,mlperf,inference,src")
    assert "run,mlperf,inference,submission,checker" not in [tags for tags, _ in done]
    (checkers,) = [node for node in planned(tmp_path, request) if node.name == "checkers"]
    assert checkers.only_if == ("only if checker source ended well",)


def test_how_long_a_step_took_is_known_to_the_next_plan(tmp_path, monkeypatch, files):
    request = asked(tmp_path, "_vllm", {}, files)
    before = {node.name: node.data["duration"] for node in planned(tmp_path, request)}
    assert before["server"] is None
    assert before["Server performance"]["at_least"]
    executed(monkeypatch, request)
    (server,) = [node for node in planned(tmp_path, request) if node.name == "server"]
    known = server.data["duration"]
    took_s = read_ledger(tmp_path / "out" / "test").states["server"].took_s
    assert known["source"].startswith("as on 20") and known["seconds"] == took_s < 60
    assert any(re.search(r"takes \S+ s, as on", note) for note in server.notes)


@pytest.fixture(autouse=True)
def token(monkeypatch):
    """A token: without one no gated model can be downloaded."""
    monkeypatch.setenv("HF_TOKEN", "made-up")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that makes this machine one whose NVIDIA driver answers as recorded, or one without GPUs."""

    def make(recording):
        @contextmanager
        def opened():
            text = (ROOT / "tests" / "hardware" / "recordings" / f"{recording}.json").read_text() if recording else ""
            yield Replay(json.loads(text)) if text else None

        monkeypatch.setattr("cm4vllm.hardware.gpus.vendors.nvml.VENDOR.opened", opened)
        monkeypatch.setattr("cm4vllm.hardware.gpus.vendors.amd.KFD", tmp_path / "kfd")

    return make


@pytest.mark.parametrize(
    ("recording", "flags", "build"),
    [("h100-sxm-x4", {}, "_cuda"), ("h100-sxm-x4", {"device": "cpu"}, "_cpu"), ("", {}, "_cpu")],
)
def test_the_device_decides_which_vllm_is_installed(tmp_path, monkeypatch, files, machine, recording, flags, build):
    machine(recording)
    request = asked(tmp_path, "_vllm", flags, files)
    walked = [node for step in planned(tmp_path, request) for node, certain in step.walk() if certain]
    builds = {
        word
        for node in walked
        if node.script and node.script.alias == "install-vllm"
        for word in node.tags.split(",")
        if word.startswith("_")
    }
    assert builds == {build}
    envs = [env for _, env in executed(monkeypatch, request)]
    assert {env.get("CM_VLLM_VARIANT", "") for env in envs} == {flags.get("device", "")}


@pytest.mark.parametrize(
    ("flags", "visible", "words"),
    [
        ({"tp_size": "16"}, None, "16 workers need 16 GPUs, and this machine has 4"),
        ({"replicas": "5"}, None, "5 servers of 1 workers need 5 GPUs, and this machine has 4"),
        (
            {"pp_size": "2", "replicas": "2"},
            "0,1,2",
            "2 servers of 2 workers need 4 GPUs, and this machine has 3 visible",
        ),
        ({"extra_args": "--tensor-parallel-size 8"}, None, "8 workers need 8 GPUs, and this machine has 4"),
        ({"replicas": "2"}, "0,9", "need 2 GPUs, and this machine has 1 visible of the 4"),
        ({}, "NoDevFiles", "need 1 GPUs, and this machine has 0 visible of the 4"),
    ],
)
def test_more_workers_than_visible_gpus_are_refused_by_plan_and_run(
    tmp_path, monkeypatch, files, machine, flags, visible, words
):
    machine("h100-sxm-x4")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    request = asked(tmp_path, "_vllm", flags, files)
    with pytest.raises(UsageError, match=words) as of_plan:
        planned(tmp_path, request)
    with pytest.raises(UsageError) as of_run:
        executed(monkeypatch, request)
    assert str(of_run.value) == str(of_plan.value)


def test_a_device_that_is_missing_is_refused_unless_a_server_is_given(tmp_path, monkeypatch, files, machine):
    device = "cuda"
    machine("")
    request = asked(tmp_path, "_vllm", {"device": device}, files)
    with pytest.raises(CmError, match=f"--device={device}: no ") as of_plan:
        planned(tmp_path, request)
    with pytest.raises(CmError) as of_run:
        executed(monkeypatch, request)
    assert str(of_run.value) == str(of_plan.value)
    given = asked(tmp_path, "_vllm", {"device": device, "api_server": "A_SERVER_URL", "env": TRAINS}, files)
    planned(tmp_path, given)
    envs = [env for _, env in executed(monkeypatch, given)]
    assert not any("CM_VLLM_VARIANT" in env for env in envs)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"adr": {"vllm": {"tags": "_cuda"}}}, "--device=cuda: no "),
        ({"adr": {"vllm": {"tags": "_rocm"}}}, "--device=rocm: no "),
        ({"adr": {"vllm": {"tags": "_version.0.33.0"}}}, "there is no CPU build of vLLM 0.33.0"),
        ({"vllm_version": "0.33.0"}, "there is no CPU build of vLLM 0.33.0"),
    ],
)
def test_a_vllm_that_this_machine_cannot_have_is_refused_before_any_step(
    tmp_path, monkeypatch, files, machine, flags, words
):
    machine("")
    request = asked(tmp_path, "_vllm", flags, files)
    with pytest.raises(CmError, match=words) as of_plan:
        planned(tmp_path, request)
    with pytest.raises(CmError) as of_run:
        executed(monkeypatch, request)
    assert str(of_run.value) == str(of_plan.value)


def test_the_cores_of_a_gpu_machine_count_where_the_cpu_is_asked_for(tmp_path, files, machine):
    machine("h100-sxm-x4")
    assert planned(tmp_path, asked(tmp_path, "_vllm", {"tp_size": "2", "replicas": "2"}, files))
    with pytest.raises(CmError, match="4096 cores"):
        planned(tmp_path, asked(tmp_path, "_vllm", {"tp_size": "4096", "device": "cpu"}, files))


def test_the_nodes_of_a_server_are_shown(files, tmp_path, capsys):
    given = {"nodes": "2", "launcher": "local", "tp_size": "2", "device": "cpu"}
    planned(tmp_path, asked(tmp_path, "_vllm", given, files))
    output = capsys.readouterr()
    shown = " ".join((output.out + output.err).split())
    assert "one server over 2 nodes, by local: node1, node2; workers on each: 1" in shown
    assert "on node1: --nnodes 2 --node-rank 0 --master-addr HEAD" in shown
    assert "on node2: --headless --nnodes 2 --node-rank 1" in shown


# --- command lines that the main job refuses: the plan and the run with the same message


#: A job with power whose power server does not answer.
POWER = {
    "power": "yes",
    "power_server": "127.0.0.1",
    "power_port": "1",
    "ntp_server": "127.0.0.1",
    "power_settings": "FILES/set.json",
    "power_wiring": "FILES/set.json",
}
#: Command lines that the run refuses: variations, flags, words of the message.
REFUSED = [
    ("_vllm", {"model": "llama3-8b"}, "did you mean 'llama3.1-8b'"),
    ("_vllm,_r4.1", {}, "llama3.1-8b is not in round v4.1"),
    ("_vllm,_r4.1", {"model": "gptj-99"}, "gptj-99 cannot be run yet"),
    ("_vllm", {"division": "closed", "execution_mode": "valid"}, "rule MODEL"),
    ("_vllm", {"division": "network"}, "rule SEPARATE"),
    ("_vllm", {"scenario": "Ofline"}, "Offline"),
    ("_vllm,_find-performance", {"scenario": "Offline"}, "finds no rate in this job"),
    ("_vllm", {"search": "max-num-sequences:1..8"}, "names no option of vLLM that can be searched"),
    ("_vllm", {"search": "max-num-seqs:8..64", "max_num_seqs": "16"}, "which is given: --max_num_seqs=16"),
    ("_vllm", {"search": "max-num-seqs:8..64", "api_server": "A_SERVER_URL"}, "--search cannot be given"),
    ("_vllm", {"search": "block-size:8..64", "rehearse": "2-core-cpu-tiny"}, "cannot be given with --rehearse"),
    ("_vllm", {"search_minutes": "5"}, "without --search"),
    ("_vllm", {"device": "tpu"}, "--device=tpu"),
    ("_vllm", {"category": "edge"}, "--category=edge"),
    ("_vllm", {"singlestream_target_latency": "1e-9"}, "at least 0.001"),
    ("_vllm", {"implementation": "nvidia"}, "--implementation=nvidia"),
    ("_vllm", {"server_target_qps": "fast"}, "--server_target_qps='fast'"),
    ("_vllm", {"quantize": "_int9"}, "--quantize=_int9"),
    ("_vllm", {"published": "h100"}, "--published=h100"),
    ("_vllm", {"api": "fast"}, "--api='fast'"),
    ("_vllm", {"api_server": "A_SERVER_URL", "replicas": "2"}, "--replicas"),
    ("_vllm", {"quantize": "_int8", "api_server": "A_SERVER_URL"}, "--quantize"),
    ("_vllm", {"api_server": "http://127.0.0.1:many"}, "is not the address of a server"),
    ("_vllm", {"vllm_model_name": "a/b/c"}, "is not the name of a hub's model"),
    ("_vllm", {"vllm_model_name": "FILES"}, "config.json"),
    ("_vllm", {"vllm_model_name": "/nowhere/model"}, "/nowhere/model"),
    ("_vllm", {"vllm_model_name": "FILES/pointer-tokenizer.json"}, "git lfs pull"),
    ("_vllm", {"vllm_model_name": "FILES/pointer-model.safetensors"}, "pointers of git-lfs"),
    ("_vllm,_path./nowhere", {}, "/nowhere"),
    ("_vllm,_dummy", {"execution_mode": "valid"}, "random weights"),
    ("_vllm", {"rehearse": "4xh100-llama2-70b-fp8", "execution_mode": "valid"}, "--rehearse"),
    ("_vllm,_mlcommons.llama-3.1-8b-instruct-fp8", {}, "MLCommons does not host"),
    ("_vllm,_hf.hub/one", {"vllm_model_name": "hub/two"}, "two models are named"),
    ("_vllm", {"dataset_path": "FILES/cnn_eval.json"}, "no model"),
    ("_vllm,_hf.hub/one", {"dataset_path": "FILES/set.json", "execution_mode": "valid"}, "has 5 samples"),
    ("_vllm,_hf.hub/one", {"dataset_path": "FILES/gone.json"}, "--dataset_path"),
    ("_vllm,_hf.hub/one", {"dataset_path": "FILES/model/config.json"}, "config.json"),
    ("_vllm", {"system_file": "FILES/gone.yaml"}, "system.template.yaml"),
    ("_vllm", {"inference_src": "FILES/gone"}, "gone"),
    ("_vllm,_hf.hub/one", {"nltk_data": "FILES/gone.zip"}, "gone.zip"),
    ("_vllm", {"num_workers": "65"}, "--num_workers=65"),
    ("_vllm", {"max_in_flight": str(10**9)}, "may need"),
    ("_vllm", {"tp_size": "4096"}, "4096 cores"),
    ("_vllm", {"port": "99999"}, "port 99999 does not exist"),
    ("_vllm", {"preset": "fastest"}, "fastest"),
    ("_vllm", {"extra_args": "--enable-prefix-caching"}, "--enable-prefix-caching"),
    ("_vllm", {"output_dir": "/proc/results"}, "/proc/results"),
    ("_vllm", {"output_dir": "FILES/set.json/results"}, "is a file"),
    ("_vllm", {"output_dir": "~no-such-user/results"}, "home folder"),
    ("_vllm", {"output_dir": "FILES/locked"}, ".lock there: Is a directory"),
    ("_vllm", {"submitter": "a" * 300}, "100 at most"),
    ("_vllm", {"hw_name": "a" * 300}, "name is too long"),
    ("_vllm", {"system_file": "FILES/pipe"}, "a pipe"),
    ("_vllm", {"api_server": "https://127.0.0.1:1", "api_server_ca": "FILES/gone.pem"}, "gone.pem"),
    ("_vllm", {"api_server": "http://two words:1"}, "no name with spaces"),
    ("_vllm", {"replicas": str(10**9)}, "need 1000000000 cores"),
    ("_vllm", {"replicas": str(10**30)}, "2,147,483,647 at most"),
    ("_vllm", {"max_model_len": "100"}, "128 tokens are generated"),
    ("_vllm", {"ready_timeout": "nan"}, "--ready_timeout=nan"),
    ("_vllm", {"max_num_seqs": "-4"}, "--max_num_seqs=-4"),
    ("_vllm", {"served_model_name": "-x"}, "-x"),
    ("_vllm", {"adr": {"ml-model": {"tags": "_tiny,_hf.a/b"}}}, "--adr.ml-model.tags=_tiny,_hf.a/b names 2 sources"),
    ("_vllm,_hf.a/b", {"adr": {"dataset": {"tags": "_path.FILES/gone.json"}}}, "there is no dataset"),
    ("_vllm", {"adr": {"vllm-server": {"env": {"CM_VLLM_SERVER_TP_SIZE": "4096"}}}}, "4096 cores"),
    ("_vllm", {"adr": {"vllm-server": {"output_dir": "/x"}}}, "--adr.vllm-server.output_dir cannot be given"),
    ("_vllm", {"adr": {"loadgen": {"tags": "_r5.1"}}}, "--adr.loadgen.tags=_r5.1"),
    ("_vllm", {"power": "yes"}, "a power session needs --power_server"),
    ("_vllm", {"power": "yes", "power_server": "127.0.0.1"}, "a power session needs --ntp_server"),
    ("_vllm", {**POWER, "power_settings": ""}, "the settings of the measured system must be stated"),
    ("_vllm", {**POWER, "power_wiring": "FILES/gone.md"}, "gone.md"),
    ("_vllm", {**POWER, "power_supplies": "FILES/set.json"}, "states no power supply"),
    ("_vllm,_r6.0", {**POWER, "power_supplies": "FILES/set.json"}, "v6.0 has no file of power supplies"),
    ("_vllm", {**POWER, "num_analyzers": "2"}, "2 analyzers are not supported"),
    ("_vllm", POWER, "no power server answers on 127.0.0.1 port 1"),
]


@pytest.mark.parametrize(("variations", "flags", "words"), REFUSED)
def test_the_plan_refuses_what_the_run_refuses_with_the_same_message(
    tmp_path, monkeypatch, files, variations, flags, words
):
    request = asked(tmp_path, variations, flags, files)
    with pytest.raises(CmError) as of_plan:
        planned(tmp_path, request)
    assert words in str(of_plan.value)
    with pytest.raises(CmError) as of_run:
        executed(monkeypatch, request)
    changed = [name for change in flags.get("adr", {}).values() for name in change]
    for typed in (*flags, *changed):  # the engine names the flag in the error of a hook that runs
        if key := JOB.input_mapping.get(typed):
            of_run.value.reworded(f"{key}=", f"--{typed}=")
    assert str(of_run.value) == str(of_plan.value)
    assert type(of_run.value) is type(of_plan.value)
    assert not (tmp_path / "out").exists()
