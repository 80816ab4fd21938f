"""vLLM's own in-process generate: `PYTHON generate.py MODEL FOLDER MAX_NUM_SEQS ROUNDS` in the Python that has vLLM.

FOLDER/prompts.json holds lists of token ids; the tokens/s of each round, after one that warms up, go to
FOLDER/rates.json. Nothing of the benchmark is imported: this Python need not have it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

TOKENS = 128


def main() -> None:
    """Measure, and write the rates."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    model, folder, sequences, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    prompts = [{"prompt_token_ids": ids} for ids in json.loads((folder / "prompts.json").read_text())]
    llm = LLM(model=model, max_num_seqs=sequences, enable_prefix_caching=False, max_model_len=1024)
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, min_tokens=TOKENS)
    rates = []
    for _ in range(rounds + 1):
        begin = time.monotonic()
        answers = llm.generate(prompts, greedy, use_tqdm=False)
        rates.append(sum(len(answer.outputs[0].token_ids) for answer in answers) / (time.monotonic() - begin))
    (folder / "rates.json").write_text(json.dumps(rates[1:]))


if __name__ == "__main__":
    main()
