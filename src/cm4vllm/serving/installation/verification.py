"""Run by the Python of a vLLM: proves that it serves a token, and prints its device and its versions as JSON.

    python verification.py HELP PACKAGE...

HELP is the file that takes the text of `vllm serve --help=all`: all of vLLM is imported here anyway. With `-` the text
is printed before the JSON, between HELP_BEGIN and HELP_END, as in a container. PACKAGE are the packages whose versions
are printed, as far as they are installed. The model is made of random weights by vLLM itself (load format `dummy`), so
that nothing is downloaded. This file imports nothing of the package: the environment does not contain it.
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
HELP_BEGIN, HELP_END = "--- vllm serve --help=all", "--- end of the help"


def main(help_file: str, packages: list[str]) -> int:
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
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    text = serve_help()
    if help_file == "-":
        print(HELP_BEGIN, text, HELP_END, sep="\n")
    elif text:
        Path(help_file).write_text(text)
    print(json.dumps({"device": device, "packages": versions}))
    return 0


def serve_help() -> str:
    """Return the help of `vllm serve`; empty for a release without --help=all."""
    try:
        from vllm.entrypoints.cli.main import main as command  # type: ignore[import-not-found]
    except ImportError:
        return ""
    text = io.StringIO()
    arguments, sys.argv = sys.argv, ["vllm", "serve", "--help=all"]
    try:
        with contextlib.redirect_stdout(text):
            command()
    except SystemExit as end:
        if not end.code:
            return text.getvalue()
    finally:
        sys.argv = arguments
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
