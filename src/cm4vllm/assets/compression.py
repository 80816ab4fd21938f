"""Quantise a model with llm-compressor; run by path in the environment that has it.

    python compression.py --model=FOLDER --output=FOLDER --preset=NAME --algorithm=NAME [--kv-fp8] [--samples=FILE]

The preset is llm-compressor's, empty to leave the weights as they are (quantization_schemes.yaml). FILE is a JSON list
of token id lists, none of which is cut or padded. The folder of --output receives the checkpoint and the tokenizer's
files as they are. The last line printed is a JSON object: what was quantised, and the versions of the tools. Nothing of
cm4vllm is imported, because that environment is llm-compressor's, not ours.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
from pathlib import Path
from typing import Any

os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

KV_FP8 = {
    "num_bits": 8,
    "type": "float",
    "strategy": "tensor",
    "dynamic": False,
    "symmetric": True,
    "observer": "static_minmax",
}
TOOLS = ("llmcompressor", "compressed-tensors", "torch", "transformers")
#: Of the source's folder, what is not weights or their index: tokenizer, reader of audio, chat template, defaults.
KEPT = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "normalizer.json",
    "preprocessor_config.json",
    "chat_template*",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
)


def modifiers(preset: str, algorithm: str, kv_fp8: bool, ignored: list[str]) -> list[Any]:
    """Return llm-compressor's recipe; the layers `ignored` keep their weights."""
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier

    kv = KV_FP8 if kv_fp8 else None
    if not preset:
        return [QuantizationModifier(kv_cache_scheme=kv)]
    modifier = {"round-to-nearest": QuantizationModifier, "gptq": GPTQModifier}[algorithm]
    return [modifier(targets="Linear", scheme=preset, ignore=ignored, kv_cache_scheme=kv)]


def load_model(folder: Path) -> Any:
    """Return the model in a folder, as the class that its config.json names."""
    import torch
    import transformers

    named = transformers.AutoConfig.from_pretrained(folder).architectures or [""]
    kind = getattr(transformers, named[0], transformers.AutoModelForCausalLM)
    return kind.from_pretrained(folder, dtype="auto", device_map="auto" if torch.cuda.is_available() else None)


def main() -> None:
    """Quantise and save, as the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--algorithm", choices=("round-to-nearest", "gptq"), required=True)
    parser.add_argument("--kv-fp8", action="store_true")
    parser.add_argument("--samples", type=Path)
    arguments = parser.parse_args()

    import torch
    from datasets import Dataset
    from llmcompressor import oneshot

    torch.manual_seed(0)
    model = load_model(arguments.model)
    # The layer that makes scores of tokens is never quantised.
    head = model.get_output_embeddings()
    ignored = [name for name, module in model.named_modules() if module is head]
    calibration: dict[str, Any] = {}
    if arguments.samples is not None:
        samples = json.loads(arguments.samples.read_text())
        rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in samples]
        calibration = {
            "dataset": Dataset.from_list(rows),
            "num_calibration_samples": len(rows),
            "max_seq_length": max(map(len, samples)),
            "shuffle_calibration_samples": False,
        }
    recipe = modifiers(arguments.preset, arguments.algorithm, arguments.kv_fp8, ignored)
    oneshot(model=model, recipe=recipe, **calibration)
    schemes = {name: getattr(module, "quantization_scheme", None) for name, module in model.named_modules()}
    layers = [name for name, scheme in schemes.items() if getattr(scheme, "weights", None) is not None]
    model.save_pretrained(arguments.output, save_compressed=True)
    for pattern in KEPT:
        for path in arguments.model.glob(pattern):
            shutil.copyfile(path, arguments.output / path.name)
    versions = {name: importlib.metadata.version(name) for name in TOOLS}
    print(json.dumps({"layers": layers, "ignored": ignored, "tools": versions}), flush=True)


if __name__ == "__main__":
    main()
