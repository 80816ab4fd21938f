"""A first estimate of a server's rate: some requests of a run, timed before any run has measured it."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from cm4vllm.common.errors import CmError
from cm4vllm.loadgen.process.sample_library import library_of, read_rows
from cm4vllm.loadgen.process.selfcheck import expected_tokens
from cm4vllm.records.run import RunSettings
from cm4vllm.rules import Media
from cm4vllm.serving.probing.media_apis import FORM
from cm4vllm.serving.probing.server_requests import ask, sites_of

#: Tokens of the answers by whose times the time of a whole answer is computed: those of the prompts count in both.
_FEW, _MORE = 1, 16
#: A token takes this part at least of the mean time of a token in the longer answers, prompts counted: the times of a
#: busy machine vary by more than both lengths differ.
_LEAST_PART = 0.25


def first_rate(settings: RunSettings, count: int, *, at_a_time: int, longest_s: float) -> float | None:
    """Send the first `count` samples of a run, `at_a_time` of them; return the samples/s that whole answers come to.

    Short answers are asked for, of two lengths. The rate is a lower bound where the server answers more requests at a
    time faster, and where answers are shorter than those of the benchmark's own model. Requests are given up after
    `longest_s`, and count as if they were answered then. None where the server refused them all: the run that follows
    reports why.
    """
    tokens = expected_tokens(settings)
    more = min(_MORE, tokens)
    few_s, done = _times(settings, count, _FEW, at_a_time, longest_s / 2)
    more_s, done = _times(settings, count, more, at_a_time, longest_s / 2) if more > _FEW else (few_s, done)
    if not done and more_s < longest_s / 2:
        return None
    return min(count, settings.samples) / whole_s(few_s, more_s, more, tokens)


def whole_s(few_s: float, more_s: float, more: int, tokens: int) -> float:
    """Return the seconds that answers of so many `tokens` take, where those of _FEW and of `more` take these."""
    each_s = max((more_s - few_s) / max(1, more - _FEW), _LEAST_PART * more_s / more)
    return more_s + (tokens - more) * each_s


def _times(settings: RunSettings, count: int, tokens: int, at_a_time: int, longest_s: float) -> tuple[float, int]:
    """Return the seconds that requests for so many tokens take, and how many were answered."""
    asked = replace(settings, max_tokens=tokens, min_tokens=min(tokens, settings.min_tokens))
    rows = read_rows(settings.dataset, min(count, settings.samples))
    library, sites, path = library_of(asked, rows), sites_of(settings.server), settings.server.api.path
    os.close(library.descriptor)  # nothing is put there
    kind = FORM if settings.terms.media is Media.AUDIO else "application/json"
    begin = time.monotonic()

    def answered(index: int) -> bool:
        """Return True if the server answered the query within the time that is left."""
        left_s = longest_s - (time.monotonic() - begin)
        if left_s <= 0:
            return False
        try:
            status, _ = ask(sites[index % len(sites)], "POST", path, library.body(index), left_s, content_type=kind)
        except CmError:
            return False
        return status == 200

    with ThreadPoolExecutor(at_a_time) as pool:
        done = sum(pool.map(answered, range(len(rows))))
    return time.monotonic() - begin, done
