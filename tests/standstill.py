"""Real LoadGen runs of servers that answer at once: a machine that stands still in one is measured in their place."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log

#: Far above what the servers of the tests take, and below each limit of the rules.
_STILL_NS = 300_000_000
_TTFT = "result_first_token_99.00_percentile_latency_ns"


def repeat_after_standstill(argv: Sequence[str], folder: Path) -> None:
    """Have the program that made the run in a folder make it again, as long as the machine stands still in it.

    What reads the run is tested with a valid one; a machine that always stands still leaves the twentieth.
    """
    for _ in range(20):
        log = read_detail_log(folder / DETAIL_LOG)
        if not log.is_defined(_TTFT) or log.number(_TTFT) < _STILL_NS:
            return
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=120)
