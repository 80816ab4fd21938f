"""Refusals by the admission control of vLLM: requests above a limit that the server was started with.

The words are those of vLLM 0.32.0 (vllm/exceptions.py, QueueOverflowError and MaxQueuedTokensError), which since 0.29
come with HTTP status 503, or as an event where an answer has begun.
"""

from collections.abc import Iterable

#: Parts of a refusal's message, and the option of `vllm serve` that sets the limit.
_LIMITS = {
    "cannot accept new requests": "--max-num-queued-reqs",
    "prefill token backlog limit": "--max-num-queued-tokens",
}


def admission_limits(messages: Iterable[str]) -> str:
    """Return the options whose limits the requests with these errors were above, in words; empty for other errors."""
    texts = list(messages)
    return " and ".join(option for words, option in _LIMITS.items() if any(words in text for text in texts))


def higher_limits(options: str) -> str:
    """Return the remedy for such refusals."""
    return f"start the server with a higher {options}, or without a limit"
