"""Options of `vllm serve` in every form that it takes, each line with what vLLM 0.32.0 reads out of it."""

from typing import Any

LINES: list[tuple[str, dict[str, Any]]] = [
    ("--max-num-seqs 64", {"max-num-seqs": 64}),
    ("--max_num_seqs=64 --tensor_parallel_size=2", {"max-num-seqs": 64, "tensor-parallel-size": 2}),
    ("--max-num-seqs=1 --max_num_seqs 2", {"max-num-seqs": 2}),
    ("-tp 2 -pp=3 -q fp8", {"tensor-parallel-size": 2, "pipeline-parallel-size": 3, "quantization": "fp8"}),
    ("--tensor-parallel-size 4 -tp 2", {"tensor-parallel-size": 2}),
    ("--device-memory-utilization 0.5", {"gpu-memory-utilization": 0.5}),
    ("--tensor-par=2", {"tensor-parallel-size": 2}),
    ("--enforce-eager --no-async-scheduling", {"enforce-eager": True, "async-scheduling": False}),
    ("--no-enforce-eager --enforce_eager", {"enforce-eager": True}),
    ("-ep --disable-log-stats", {"enable-expert-parallel": True, "disable-log-stats": True}),
    ("--served-model-name a b --seed -1", {"served-model-name": ["a", "b"], "seed": -1}),
    ("--served-model-name=a", {"served-model-name": ["a"]}),
    ("--max-model-len 1k --max-num-batched-tokens=2K", {"max-model-len": 1000, "max-num-batched-tokens": 2048}),
    ("--max-model-len 25.6k", {"max-model-len": 25600}),
    ('--hf-overrides {"a":{"b":1}}', {"hf-overrides": {"a": {"b": 1}}}),
    ("--hf-overrides.a.b 1 --hf_overrides.a.c=x", {"hf-overrides": {"a": {"b": 1, "c": "x"}}}),
    ('--hf-overrides {"d":2} --hf-overrides.a+ x,y', {"hf-overrides": {"a": ["x", "y"]}}),
    ('--hf-overrides.a {"b":1} --hf-overrides.a {"c":true}', {"hf-overrides": {"a": {"b": 1, "c": True}}}),
    ("-O3", {"optimization-level": 3}),
    ("-O 2", {"optimization-level": 2}),
    ("-O=1", {"optimization-level": 1}),
]
