"""One process of a server over several nodes, in vLLM's place: `python node_peer.py PORT [OPTION...]`.

The head serves as tests/serving/peer.py does; a node with --headless waits. With NODE_FAULT=RANK the
node of that rank ends with a traceback after a second, and no other serves.
"""

import os
import runpy
import sys
import time
from pathlib import Path


def rank() -> int:
    for option in ("--node-rank", "--data-parallel-start-rank"):
        if option in sys.argv:
            return int(sys.argv[sys.argv.index(option) + 1])
    return 0


if __name__ == "__main__":
    print(f"rank {rank()} with {' '.join(sys.argv[2:])}", flush=True)
    if fault := os.environ.get("NODE_FAULT"):
        time.sleep(1 if fault == str(rank()) else 600)
        sys.exit("Traceback (most recent call last):\nMemoryError: no room for the weights of this rank")
    if "--headless" in sys.argv:
        time.sleep(600)
    sys.argv = sys.argv[:2]
    runpy.run_path(str(Path(__file__).parents[1] / "peer.py"), run_name="__main__")
