"""A picture of a page, made by headless Chromium, as the README has one.

`python docs/tools/screenshot.py mlperf-results/test/summary.html docs/pictures/report.png [WIDTH HEIGHT]`
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cm4vllm.common.errors import CmError, UsageError

#: A picture of the README is smaller than this.
MAX_BYTES = 150_000
_TIMEOUT_S = 120
#: Time that a page's own script has, in ms.
_SCRIPT_MS = 2500
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """Return the browser's program; empty where none is installed."""
    return next(filter(None, map(shutil.which, _NAMES)), "")


def screenshot(page: str, picture: Path, width: int = 1000, height: int = 760, most: int = MAX_BYTES) -> None:
    """Write the top of the page at a URL, so many pixels wide and high, as a PNG file.

    Raises CmError where there is no browser, where it fails, and where the picture has more than `most` bytes.
    """
    program = chromium()
    if not program:
        raise CmError(
            "no picture can be made",
            cause=f"none of {', '.join(_NAMES)} is on PATH",
            remedy="install Chromium (Debian: apt-get install chromium)",
        )
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-background-networking",
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                f"--virtual-time-budget={_SCRIPT_MS}",
                f"--screenshot={picture.absolute()}",
                page,
            ],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    if done.returncode or not picture.is_file():
        raise CmError(f"{program} made no picture of {page}", cause=done.stderr[-400:])
    if picture.stat().st_size > most:
        raise CmError(
            f"{picture} has {picture.stat().st_size:,} bytes",
            cause=f"at most {most:,} are allowed",
            remedy="make it narrower or lower",
        )


def _main(words: list[str]) -> None:
    if len(words) not in (2, 4):
        raise UsageError("a page and a picture are needed", remedy="give PAGE PICTURE [WIDTH HEIGHT]")
    screenshot(Path(words[0]).absolute().as_uri(), Path(words[1]), *map(int, words[2:]))


if __name__ == "__main__":
    _main(sys.argv[1:])
