"""vLLM's own in-process generate: `PYTHON generate.py MODEL PROMPTS OPTIONS` in the Python that has vLLM.

PROMPTS is a file of lists of token ids, OPTIONS a JSON object of vLLM's engine arguments. For each empty line of
standard input all prompts are answered once, and a line `RATE tokens/s` is printed among what vLLM says. For a line
with a number they come one by one at that many queries/s, with the gaps of a Poisson process, and a line
`PACED tokens/s TTFT TPOT` is printed, both the 99th percentile in ms. Either all lines have a number, or none.
Nothing of the benchmark is imported: this Python need not have it.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

TOKENS = 128


def main() -> None:
    """Generate until standard input ends."""
    model, path, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    prompts = [{"prompt_token_ids": ids} for ids in json.loads(path.read_text())]
    asked = {"model": model, "enable_prefix_caching": False, "max_model_len": 1024, **options}
    first = sys.stdin.readline()
    if first.strip():
        asyncio.run(paced(asked, prompts, first))
    elif first:
        at_once(asked, prompts)


def at_once(asked: dict[str, Any], prompts: list[dict[str, Any]]) -> None:
    """Answer all prompts at once for each line; the first line was read."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    llm = LLM(**asked)
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, min_tokens=TOKENS)
    line = "\n"
    while line:
        begin = time.monotonic()
        answers = llm.generate(prompts, greedy, use_tqdm=False)
        rate = sum(len(answer.outputs[0].token_ids) for answer in answers) / (time.monotonic() - begin)
        print(f"RATE {rate}", flush=True)
        line = sys.stdin.readline()


async def paced(asked: dict[str, Any], prompts: list[dict[str, Any]], line: str) -> None:
    """Answer the prompts as they come at the rate of each line; `line` is the first."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
    from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]
    from vllm.v1.engine.async_llm import AsyncLLM  # type: ignore[import-not-found]

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**asked))
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, min_tokens=TOKENS, output_kind=RequestOutputKind.DELTA)

    async def answered(name: str, prompt: dict[str, Any], at: float) -> tuple[int, float, float, float]:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        begin, first, count = time.monotonic(), 0.0, 0
        async for part in engine.generate(prompt, greedy, name):
            count += len(part.outputs[0].token_ids)
            first = first or (time.monotonic() if count else 0.0)
        return count, begin, first, time.monotonic()

    run = 0
    while line:
        run, gaps, at = run + 1, random.Random(17), time.monotonic()  # noqa: S311 - a schedule
        tasks = []
        for number, prompt in enumerate(prompts):
            tasks.append(answered(f"{run}-{number}", prompt, at))
            at += gaps.expovariate(float(line))
        made = await asyncio.gather(*tasks)
        rate = sum(count for count, *_ in made) / (max(end for *_, end in made) - min(begin for _, begin, *_ in made))
        ttft = _p99([first - begin for _, begin, first, _ in made])
        tpot = _p99([(end - first) / max(1, count - 1) for count, _, first, end in made])
        print(f"PACED {rate} {1000 * ttft} {1000 * tpot}", flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
    engine.shutdown()


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


if __name__ == "__main__":
    main()
