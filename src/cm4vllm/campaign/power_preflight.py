"""A power session before the runs: it measures nothing, and finds what would spoil the sessions that take hours.

Its files are those of any session, and cannot be changed later: what they say of the analyzer must fit what the user
states, and no word in them may be private.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cm4vllm.common.errors import RunFailed, UsageError
from cm4vllm.common.redaction import vault
from cm4vllm.power.making import Site, make_session, preflight_run
from cm4vllm.power.samples import SIMULATED
from cm4vllm.power.session import FILES, Phase, PowerSession
from cm4vllm.submission.privacy import PrivateWord, first_private

__all__ = ["make_preflight", "require_publishable"]
