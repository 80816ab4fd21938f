"""The job that is checked before it begins, and the machine that it is checked on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.campaign.settings import Job
from cm4vllm.common.files import typed_path
from cm4vllm.hardware.system_file import read_system_file
from cm4vllm.serving.probing.server_requests import base_urls
from cm4vllm.submission.system_records import runs_here

#: The rules are data, with their sources.
SOURCE = "cm4vllm.rules, division_rules"
#: Why a rule that the machines of a system keep cannot be known from LoadGen's.
NOT_SHOWN = "; vLLM's HTTP API, by which alone LoadGen's machine asks it, does not tell"


@dataclass(frozen=True)
class JobFacts:
    """The job, and the machine that it is checked on."""

    job: Job
    root: Path

    @property
    def stated(self) -> Mapping[str, str]:
        """The statements of the system file, empty without one."""
        path = self.job.settings.system_file
        return read_system_file(typed_path(path)).stated if path else {}

    @property
    def elsewhere(self) -> bool:
        """Return True if the model is served on other machines, about which this machine shows nothing."""
        servers = self.job.settings.api_server
        return bool(servers) and not any(runs_here(url) for url in base_urls(servers))
