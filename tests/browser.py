"""A page in headless Chromium."""

import subprocess
from pathlib import Path

from commands import need


def chromium(tmp_path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run Chromium with a profile below `tmp_path`, its console in stderr; skip the test where it is not installed."""
    return subprocess.run(
        [
            need("chromium", "chromium-browser", "google-chrome"),
            *(
                "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
                "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars "
                "--allow-file-access-from-files --enable-logging=stderr"
            ).split(),
            f"--user-data-dir={tmp_path / 'profile'}",
            *argv,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
