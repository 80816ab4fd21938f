"""The metrics of vLLM that a run reads, and those that the servers and the installations at hand do not have."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from cm4vllm.common.errors import CmError
from cm4vllm.common.records import read_record
from cm4vllm.engine.cache.entries import cache_root, finished_entries
from cm4vllm.serving.installation.install import VLLM_FILE, VllmRecord
from cm4vllm.serving.launch_settings import LaunchSettings, require_access
from cm4vllm.serving.probing.server_metrics import LackingMetrics, lacking_at, lacking_in
from cm4vllm.serving.probing.server_requests import Site, base_urls


class MetricNames(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics that a server or an installed vLLM lacks, by field, and where that was read, or why it was not."""

    vllm: str
    read_in: str
    lacking: dict[str, str] = {}
    error: str = ""

    def __str__(self) -> str:
        """Return the line of the page."""
        return f"{self.vllm}, by {self.read_in}: {self.error or self._lacking_words()}"

    def _lacking_words(self) -> str:
        if not self.lacking:
            return "all"
        missing = LackingMetrics(fields=self.lacking)
        effect = "no metrics of it are recorded" if missing.all_lost else "recorded as 0 or left out"
        return f"without {', '.join(f'{name} ({field})' for field, name in self.lacking.items())}: {effect}"


def metric_names(servers: LaunchSettings, home: Path) -> Iterator[MetricNames]:
    """Yield those of the servers that are given, by their pages, and of each vLLM in a CM home, by its source.

    Raises UsageError for an address or a key that cannot be used.
    """
    if servers.api_server:
        access = require_access(servers)
        for url in base_urls(servers.api_server):
            read = partial(lacking_at, Site(url, servers.api_server_ca, access))
            yield _names(url, "its /metrics", read)
    seen = set()
    for entry in finished_entries(cache_root(home)):
        path = Path(entry.folder) / VLLM_FILE
        package = next(path.parent.glob("*/lib/python3*/site-packages/vllm"), None)
        if package is not None and path.is_file():
            names = _names(f"vLLM {_release(path)}", "its source", partial(lacking_in, package))
            if names.vllm not in seen:
                seen.add(names.vllm)
                yield names


def _names(vllm: str, read_in: str, read: Callable[[], LackingMetrics]) -> MetricNames:
    try:
        return MetricNames(vllm=vllm, read_in=read_in, lacking=read().fields)
    except CmError as error:
        return MetricNames(vllm=vllm, read_in=read_in, error=f"{error.what}; {error.cause}".rstrip("; "))
    except OSError as error:
        return MetricNames(vllm=vllm, read_in=read_in, error=f"cannot be read: {error.strerror}")


def _release(path: Path) -> str:
    """Return the release of the installation with this record."""
    try:
        return read_record(path, VllmRecord).packages.get("vllm", "")
    except CmError as error:
        return error.what
