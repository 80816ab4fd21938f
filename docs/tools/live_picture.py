"""A picture of the live view, as the README has one: the page of a job's status.json in headless Chromium.

`python docs/tools/live_picture.py mlperf-results/test/status.json docs/pictures/live.png [WIDTH HEIGHT]`
"""

import sys
from pathlib import Path

from cm4vllm.campaign.live.monitor import Page
from cm4vllm.campaign.live.page_address import Address
from cm4vllm.campaign.live.status import StatusRecord
from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import read_record
from screenshot import screenshot

#: The picture is smaller than this.
MAX_BYTES = 80_000


def live_picture(status: Path, picture: Path, width: int = 760, height: int = 560) -> None:
    """Serve the live view of a status.json on loopback, and write it as a PNG file, so many pixels wide and high.

    Raises CmError where it is no status, and what screenshot raises.
    """
    page = Page(Address("127.0.0.1", 0))
    try:
        page.show(status.read_bytes(), read_record(status, StatusRecord))
        screenshot(page.address.url, picture, width, height, MAX_BYTES)
    finally:
        page.close()


def _main(words: list[str]) -> None:
    if len(words) not in (2, 4):
        raise UsageError("a status.json and a picture are needed", remedy="give STATUS PICTURE [WIDTH HEIGHT]")
    live_picture(Path(words[0]), Path(words[1]), *map(int, words[2:]))


if __name__ == "__main__":
    _main(sys.argv[1:])
