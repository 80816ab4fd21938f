"""Starts the simulated server where cm4vllm may not be installed: `python start.py --profile=NAME --port PORT ...`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[3])  # in the place of this folder, whose names are not ours alone

from cm4vllm.campaign.rehearsal.server import main  # noqa: E402 - found by the line above

main(sys.argv[1:])
