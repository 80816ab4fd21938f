"""A real vLLM server: asked in both ways, and killed in the ways that used to leave its engine behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.common.records import read_record
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.vllm.given_options import typed_value
from cm4vllm.records.vllm.options import read_options, stored_options
from cm4vllm.serving.installation.verification import CONFIG
from cm4vllm.serving.options.arguments import fp8_env
from cm4vllm.serving.probing.server_metrics import sampled
from cm4vllm.serving.probing.server_requests import Site
from cm4vllm.serving.server import SERVER_FILE
from cm4vllm.serving.supervision.death_reasons import death_reason
from cm4vllm.serving.supervision.own_supervisors import end_orphans
from vllm_lines import LINES

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("vllm-1"),
    pytest.mark.skipif("CM_REPOS" not in os.environ, reason="CM_REPOS names no CM home: run by `make test`"),
]

OWNER = """
import sys, time
from pathlib import Path
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.server import (start_all)
settings = ServerSettings(model=sys.argv[2], name="m", enforce_eager=True, max_num_seqs=4, max_model_len=64,
                          load_format="dummy")
start_all(Path(sys.argv[1]), [(settings, Path(sys.argv[3]))])
print("READY", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def python():
    done = subprocess.run(
        [Path(sys.executable).with_name("cm"), "run", "script", "--tags=get,vllm,_cpu", "--quiet", "--out=json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout[done.stdout.index("{") :])["new_env"]["CM_VLLM_PYTHON_BIN_WITH_PATH"]


PARSER = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
value_of = lambda value: getattr(value, "value", str(value))
parsed = [vars(parser.parse_args(line.split())) for line in json.load(sys.stdin)]
print(json.dumps([{name.replace("_", "-"): value for name, value in one.items()} for one in parsed], default=value_of))
"""


def test_vllm_itself_reads_command_lines_as_we_do(python):
    lines = [line for line, _ in LINES]
    done = subprocess.run(
        [python, "-c", PARSER], input=json.dumps(lines), check=True, stdout=subprocess.PIPE, text=True
    )
    for (line, ours), theirs in zip(LINES, json.loads(done.stdout.splitlines()[-1]), strict=True):
        # vLLM keeps --optimization-level as text until it makes its configuration: a number is compared as a number.
        read = {name: typed_value(value) if isinstance(value := theirs[name], str) else value for name in ours}
        assert read == ours, line


def test_the_stored_options_are_those_of_the_pinned_release(python):
    installed = read_options(Path(python).parents[2] / "vllm.json")
    assert installed == stored_options()


@pytest.fixture
def model(tmp_path):
    """A model of random weights, with the least that vLLM asks for."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    Tokenizer(WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


#: Loads vLLM's plugins, has it choose among its FP8 kernels, and compares products with those in double precision.
FP8_LAYER = """
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.kernels.linear import init_fp8_linear_kernel
from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8DynamicTokenSym, kFp8StaticChannelSym
from vllm.plugins import load_general_plugins

load_general_plugins()
with set_current_vllm_config(VllmConfig()):
    kernel = init_fp8_linear_kernel(kFp8DynamicTokenSym, kFp8StaticChannelSym, torch.float32, torch.float32, (96, 64))
    print("kernel:", type(kernel).__name__)
    layer = torch.nn.Module()
    layer.weight = torch.randn(96, 64).to(torch.float8_e4m3fn).t()
    layer.weight_scale, bias, tokens = torch.rand(96, 1), torch.randn(96), torch.randn(5, 64)
    kernel.layer_param_names = ["weight", "weight_scale", "input_scale", "input_scale_ub"]
    found = kernel.apply_weights(layer, tokens, bias)
    quantised, scales = kernel.quant_fp8(tokens)
    right = (scales.double() * quantised.double()) @ (layer.weight.double() * layer.weight_scale.t().double()) + bias
    print("error:", (found - right).abs().max().item() / right.abs().max().item())
"""


def gone(processes) -> bool:
    """Return True as soon as all processes have ended; the process that adopted them may be slow to reap them."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        states = []
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                states.append(process.status())
        if not set(states) - {psutil.STATUS_ZOMBIE}:
            return True
        time.sleep(0.05)
    return False


def stuck(record, folder) -> str:
    """Return what the looks at a server say of it."""
    begin = time.monotonic()
    with sampled([Site(record.endpoint)], folder / "metrics", 0.2, record.supervisors) as watch:
        while not watch.heartbeat.reason and time.monotonic() < begin + 30:
            time.sleep(0.05)
    return watch.heartbeat.reason


@pytest.mark.long
@pytest.mark.parametrize(
    "killed", [pytest.param(("owner", "supervisor"), id="owner+supervisor"), pytest.param(("engine",), id="engine")]
)
def test_nothing_of_a_killed_server_is_left(python, model, tmp_path, killed):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, python, str(model), str(tmp_path / "server")],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    )
    try:
        for line in owner.stdout:
            if line.strip() == "READY":
                break
        record = read_record(tmp_path / "server" / SERVER_FILE, ServerRecord)
        supervisor = psutil.Process(record.supervisor_pid)
        processes = supervisor.children(recursive=True)
        engine = next(process for process in processes if "EngineCore" in process.cmdline()[0])
        assert any("Worker" in process.cmdline()[0] for process in processes)
        sockets = Path(engine.environ()["VLLM_RPC_BASE_PATH"])
        deadline = time.monotonic() + 30
        while not (segments := [link.readlink() for link in sockets.glob("psm_*")]):  # not noted yet
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert any(path.is_socket() for path in sockets.iterdir())
        known = {"owner": psutil.Process(owner.pid), "supervisor": supervisor, "engine": engine}
        for signum in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: all die at the same moment
            for who in killed:
                known[who].send_signal(signum)
            if signum == signal.SIGSTOP and "engine" in killed:
                assert f"VLLM::EngineCore ({engine.pid}) is stopped" in stuck(record, tmp_path)
        assert gone(processes)
        if killed == ("engine",):
            deadline = time.monotonic() + 30
            while (reason := death_reason(record)) is None and time.monotonic() < deadline:
                time.sleep(0.05)
            assert f"VLLM::EngineCore ({engine.pid}) ended" in reason
            assert gone([supervisor])
        end_orphans()
        assert not any(path.exists() for path in [sockets, *segments])
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


@pytest.mark.long
def test_an_fp8_layer_is_computed_by_our_kernel_where_it_replaces_vllms(python, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("processor : 0\nflags : amx_int8\n")
    done = subprocess.run(
        [python, "-c", FP8_LAYER],
        env={**os.environ, **fp8_env(tmp_path, tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    told = dict(line.split(": ") for line in done.stdout.splitlines() if line.startswith(("kernel: ", "error: ")))
    assert told.get("kernel") == "Fp32ProductFP8LinearKernel", done.stdout
    assert float(told["error"]) < 1e-6
