"""The counts of the client and of its spare connections, for whoever needs these and no event loop."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from cm4vllm.serving.answers.event_stream import cleaned
from cm4vllm.serving.answers.stated import Stated

#: Connections to each server that are kept open for requests to come, where each has to leave at once: as many as may
#: be issued while another one is opened (a few ms with TLS, at thousands of queries/s). While they are renewed, up to
#: twice as many.
SPARE = 16
#: Different names of models in the answers of a run that are kept, and the name of all others.
_MOST_NAMES, OTHER_NAMES = 8, "other names"


@dataclass(slots=True)
class Counts:
    """Counts of the client so far; `at_length` of the completed answers ended with finish_reason `length`.

    `server_prompt_tokens` and `cached_prompt_tokens` are stated by the server. `least_more` and `most_more` are by how
    many more tokens it counted a prompt than were sent, at least and at most; None where it counts none. `models`
    counts answers by the names of the model in them. `first_tokens` came with the first event of their answers.
    """

    requests: int = 0
    completed: int = 0
    failed: int = 0
    retries: int = 0
    connections: int = 0
    longest_connect_s: float = 0.0
    prompt_tokens: int = 0
    server_prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    least_more: int | None = None
    most_more: int | None = None
    completion_tokens: int = 0
    first_tokens: int = 0
    at_once: int = 0
    at_length: int = 0
    models: dict[str, int] = field(default_factory=dict)

    def take(self, stated: Stated, prompt_tokens: int, first_tokens: int) -> None:
        """Count what a server states about an answer to a prompt of `prompt_tokens`."""
        self.cached_prompt_tokens += stated.cached_tokens
        self.first_tokens += first_tokens
        if stated.prompt_tokens >= 0:
            self.server_prompt_tokens += stated.prompt_tokens
            more = stated.prompt_tokens - prompt_tokens
            if self.least_more is None or self.most_more is None:
                self.least_more = self.most_more = more
            elif not self.least_more <= more <= self.most_more:
                self.least_more, self.most_more = min(self.least_more, more), max(self.most_more, more)
        for name in stated.models:
            known = name in self.models or len(self.models) < _MOST_NAMES
            key = cleaned(name) if known else OTHER_NAMES
            self.models[key] = self.models.get(key, 0) + 1


def total(counts: Iterable[Counts]) -> Counts:
    """Return the counts of several clients as those of one."""
    whole = Counts()
    for each in counts:
        least = [more for more in (whole.least_more, each.least_more) if more is not None]
        most = [more for more in (whole.most_more, each.most_more) if more is not None]
        longest = max(whole.longest_connect_s, each.longest_connect_s)
        for name in _SUMMED:
            setattr(whole, name, getattr(whole, name) + getattr(each, name))
        for name, answers in each.models.items():
            whole.models[name] = whole.models.get(name, 0) + answers
        whole.least_more, whole.most_more = min(least, default=None), max(most, default=None)
        whole.longest_connect_s = longest
    return whole


_SUMMED = (
    "requests",
    "completed",
    "failed",
    "retries",
    "connections",
    "prompt_tokens",
    "server_prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "first_tokens",
    "at_once",
    "at_length",
)
