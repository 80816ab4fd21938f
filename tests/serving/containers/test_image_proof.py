"""The proof of an image's vLLM: its program prints all that is known, and the log of the container is read."""

import os
import subprocess
import sys

import pytest

from cm4vllm.common.errors import InstallError
from cm4vllm.records.server import ContainerRecord
from cm4vllm.records.vllm.options import OPTIONS_FILE, read_options
from cm4vllm.serving.containers.image import _reported
from cm4vllm.serving.installation.install import PROOF
from cm4vllm.serving.installation.packages import PACKAGES

#: The parts of vLLM that the proof uses.
ENGINE = """
class SamplingParams:
    def __init__(self, **_): pass
class LLM:
    def __init__(self, **_): print('{"device": "loading"')
    def generate(self, prompts, sampling, use_tqdm):
        class Part: token_ids = TOKENS; outputs = None
        Part.outputs = [Part]
        return [Part]
"""
SERVE = """
from argparse import ArgumentParser as FlexibleArgumentParser
class ServeSubcommand:
    def subparser_init(self, subparsers):
        parser = subparsers.add_parser("serve")
        parser.add_argument("--seed", type=int)
        return parser
def cmd_init(): return [ServeSubcommand()]
"""
IMAGE = ContainerRecord(
    engine="podman", engine_version="5.0", image="vllm:1", digest="sha256:0", reference="vllm@sha256:0"
)


@pytest.fixture
def proved(tmp_path):
    """Return what a vLLM that generates these tokens reports, by the log of its proof."""

    def prove(tokens, serve=SERVE, device="cpu"):
        files = {
            "vllm/__init__.py": ENGINE.replace("TOKENS", tokens),
            "vllm/platforms.py": "class current_platform: device_name = 'cpu'",
            "vllm/entrypoints/__init__.py": "",
            "vllm/entrypoints/cli/__init__.py": "",
            "vllm/entrypoints/cli/serve.py": serve,
            "vllm-9.9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\n",
        }
        for name, text in files.items():
            (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "site" / name).write_text(text)
        with (tmp_path / "proof.log").open("wb") as log:
            env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
            subprocess.run([sys.executable, PROOF, *PACKAGES], stdout=log, stderr=log, env=env, check=False)
        return _reported(IMAGE, "python3", device, tmp_path)

    return prove


def test_the_device_the_versions_and_the_options_are_read_from_the_log(proved, tmp_path):
    image = proved("[5]")
    assert (image.device, image.python, image.packages["vllm"]) == ("cpu", "python3", "9.9.9")
    assert image.packages["python"].startswith("3.") and set(image.packages) <= {"python", *PACKAGES}
    assert "--seed" in read_options(tmp_path / "vllm.json")


def test_a_release_whose_parser_is_elsewhere_leaves_no_file(proved, tmp_path):
    proved("[5]", serve="")
    assert not (tmp_path / OPTIONS_FILE).exists()


def test_an_image_whose_vllm_generates_no_token_is_refused_with_the_place_of_its_log(proved, tmp_path):
    with pytest.raises(InstallError, match="vllm:1 does not generate a token") as caught:
        proved("[]")
    assert caught.value.cause.splitlines()[-1] == "no token was generated"
    assert f"{tmp_path / 'proof.log'}; --container_python" in caught.value.remedy


def test_an_image_that_computes_on_another_device_is_refused(proved):
    with pytest.raises(InstallError, match="computes on cpu, not on cuda"):
        proved("[5]", device="cuda")
