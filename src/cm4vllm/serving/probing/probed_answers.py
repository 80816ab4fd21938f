"""Answers to the requests of a probe: read as the client reads those of a run, and refused for the same reasons."""

from collections.abc import Iterator
from contextlib import contextmanager

from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.records.server import Dialect, Prompts
from cm4vllm.serving.answers.event_stream import AnswerError
from cm4vllm.serving.answers.id_answers import Answer, StreamReader, whole_answer
from cm4vllm.serving.answers.stated import AnswerLimits, Stated
from cm4vllm.serving.answers.text_answers import TextAnswer, TextReader, whole_text
from cm4vllm.serving.probing.server_access import not_measurable
from cm4vllm.serving.probing.server_requests import Site


def words_of(site: Site, error: AnswerError) -> str:
    """Return why an answer cannot be counted, with its numbers."""
    return site.access.without_secrets(f"{error}: {error.detail}" if error.detail else str(error))


def read_ids(site: Site, body: bytes, limits: AnswerLimits, prompt_tokens: int, *, streamed: bool) -> Answer:
    """Return an answer that lists token ids. Raises AnswerError; ServerUnsuitable where it came from a cache."""
    if streamed:
        reader = StreamReader()
        reader.feed(body)
        answer = reader.finish(prompt_tokens, limits)
    else:
        answer = whole_answer(body, prompt_tokens, limits)
    _require_uncached(site, answer.stated)
    return answer


def read_text(site: Site, body: bytes, prompts: Prompts, *, streamed: bool) -> tuple[TextAnswer, bool]:
    """Return an answer in text, whatever it counts, and whether its stream ends with [DONE].

    Raises ServerUnsuitable.
    """
    dialect = Dialect(prompts=prompts, done=False)
    with _refused(site, "a streamed answer" if streamed else "an answer"):
        if not streamed:
            answer, done = whole_text(body, 0, None, dialect), True
        else:
            reader = TextReader(dialect)
            reader.feed(body)
            answer = reader.finish(0, None)
            done = reader.done
    _require_uncached(site, answer.stated)
    return answer, done


@contextmanager
def _refused(site: Site, kind: str) -> Iterator[None]:
    try:
        yield
    except AnswerError as error:
        raise not_measurable(site.endpoint, f"{kind}: {words_of(site, error)}") from error


def _require_uncached(site: Site, stated: Stated) -> None:
    """Raise ServerUnsuitable for an answer to a prompt that was in part read from a cache."""
    if stated.cached_tokens:
        raise ServerUnsuitable(
            f"the server at {site.endpoint} caches prompt prefixes",
            cause=f"its usage says that {stated.cached_tokens:,} prompt tokens came from a cache (cached_tokens); "
            "MLPerf's rules forbid reuse of results between queries (inference_rules, Caching)",
            remedy="start it without: vLLM with --no-enable-prefix-caching, SGLang with --disable-radix-cache",
        )
