"""Options of `vllm serve` in every form that it takes, each line with what vLLM 0.32.0 reads out of it."""

from pathlib import Path

import yaml

LINES = yaml.safe_load(Path(__file__).with_name("recorded").joinpath("vllm_lines.yaml").read_text(encoding="utf-8"))
