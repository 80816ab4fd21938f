"""vLLM's own in-process generate: `PYTHON generate.py MODEL PROMPTS MAX_NUM_SEQS EXECUTOR` in the Python that has vLLM.

PROMPTS is a file of lists of token ids, EXECUTOR mp, uni, or empty for vLLM's choice. For each line of standard input
they are all answered once, and a line `RATE tokens/s` printed among what vLLM says. Nothing of the benchmark is
imported: this Python need not have it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

TOKENS = 128


def main() -> None:
    """Generate until standard input ends."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    model, path, sequences = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    prompts = [{"prompt_token_ids": ids} for ids in json.loads(path.read_text())]
    llm = LLM(model=model, max_num_seqs=sequences, enable_prefix_caching=False, max_model_len=1024,
              distributed_executor_backend=sys.argv[4] or None)
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, min_tokens=TOKENS)
    for _ in sys.stdin:
        begin = time.monotonic()
        answers = llm.generate(prompts, greedy, use_tqdm=False)
        rate = sum(len(answer.outputs[0].token_ids) for answer in answers) / (time.monotonic() - begin)
        print(f"RATE {rate}", flush=True)


if __name__ == "__main__":
    main()
