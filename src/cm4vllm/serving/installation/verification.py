"""Run by the Python of a vLLM: proves that it serves a token, and prints its device, versions and options as JSON.

    python verification.py [--import] PACKAGE...

With --import vLLM is imported, which needs no GPU; the device is then the one that its PyTorch is built for.

PACKAGE are the packages whose versions are printed, as far as they are installed. The options are those of vLLM's own
argument parser: all of vLLM is imported here anyway. The model is made of random weights by vLLM itself (load format
`dummy`), so that nothing is downloaded. This file imports nothing of the package: the environment does not contain it.
"""

import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}


def main(packages: list[str]) -> int:
    """Generate one token and print what this Python has; raise whatever fails."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
    from vllm.platforms import current_platform  # type: ignore[import-not-found]

    device = current_platform.device_name
    # Attention kernels of GPUs take no float32, and the proof shall not ask for all of a GPU's memory.
    fitting: dict[str, object] = {"dtype": "bfloat16", "gpu_memory_utilization": 0.3}
    if device == "cpu":  # in this process alone: each further one imports vLLM again, which takes longer than the token
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        fitting = {"dtype": "float32", "distributed_executor_backend": "uni"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        answer = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=64,
            max_num_seqs=1,
            **fitting,
        ).generate(
            [{"prompt_token_ids": [1, 5, 7]}],
            SamplingParams(max_tokens=1, temperature=0, detokenize=False),
            use_tqdm=False,
        )
    if len(answer[0].outputs[0].token_ids) != 1:
        print("no token was generated")
        return 1
    print(json.dumps({"device": device, "packages": versions_of(packages), "options": serve_options()}))
    return 0


def imported(packages: list[str]) -> int:
    """Import vLLM and print what this Python has, with the CUDA version of its PyTorch; raise whatever fails."""
    import torch
    import vllm  # noqa: F401 - that it can be imported is what is asked

    device = "cuda" if torch.version.cuda else "rocm" if torch.version.hip else "cpu"
    versions = versions_of(packages) | ({"cuda": torch.version.cuda} if torch.version.cuda else {})
    print(json.dumps({"device": device, "packages": versions, "options": options_without_device()}))
    return 0


def versions_of(packages: list[str]) -> dict[str, str]:
    """Return the versions of this Python and of those of the packages that are installed."""
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def options_without_device() -> list[dict[str, Any]]:
    """Return the options of `vllm serve`; none where its parser cannot be made without a device."""
    try:
        return serve_options()
    except Exception as error:
        print(f"the options of vllm serve are not known: {type(error).__name__}: {error}")
        return []


def serve_options() -> list[dict[str, Any]]:
    """Return the options of `vllm serve` as its argument parser has them; none where this release has no such one."""
    try:
        from vllm.entrypoints.cli import serve  # type: ignore[import-not-found]

        parser = serve.cmd_init()[0].subparser_init(serve.FlexibleArgumentParser().add_subparsers())
    except (ImportError, AttributeError):
        return []
    return [
        {
            "flags": list(action.option_strings),
            "nargs": action.nargs,
            "type": getattr(action.type, "__name__", ""),
            "multiples": takes_multiples(action.type),
            "choices": [str(choice) for choice in action.choices or ()],
        }
        for action in parser._actions
        if action.option_strings
    ]


def takes_multiples(kind: Any) -> bool:
    """Return True if the type of an option reads 1k as 1000."""
    try:
        return bool(kind("1k") == 1000)
    except Exception:
        return False


if __name__ == "__main__":
    sys.exit(imported(sys.argv[2:]) if sys.argv[1:2] == ["--import"] else main(sys.argv[1:]))
