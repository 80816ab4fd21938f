"""Records of the server that a run measured."""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import force_setattr

from cm4vllm.common.records import Record
from cm4vllm.records.access import Access
from cm4vllm.records.vllm.given_options import OptionValue, given_options


class Api(StrEnum):
    """The way in which completions are asked for.

    COMPLETIONS is the OpenAI format with vLLM's `return_token_ids`, GENERATE vLLM's token-only endpoint, which it
    offers with --enable-scale-out. CHAT is the OpenAI format of conversations, where text goes in and comes out.
    TRANSCRIPTIONS is the OpenAI format of audio, where a clip goes in and text comes out. PICTURES is that of
    conversations, with a picture in a message.
    """

    COMPLETIONS = "completions"
    GENERATE = "generate"
    CHAT = "chat"
    TRANSCRIPTIONS = "transcriptions"
    PICTURES = "pictures"

    @property
    def path(self) -> str:
        """Return the path of the HTTP endpoint."""
        paths = {
            Api.GENERATE: "/inference/v1/generate",
            Api.CHAT: "/v1/chat/completions",
            Api.PICTURES: "/v1/chat/completions",
            Api.TRANSCRIPTIONS: "/v1/audio/transcriptions",
        }
        return paths.get(self, "/v1/completions")


class Prompts(StrEnum):
    """The form of prompts sent to a server: token ids, text, a message of a conversation, a clip, a picture."""

    IDS = "ids"
    TEXT = "text"
    CHAT = "chat"
    AUDIO = "audio"
    PICTURE = "picture"


class Dialect(Record, frozen=True, kw_only=True):
    """The request format of a server that returns text but no token ids.

    `usage` tells whether it counts tokens, `done` whether its streams end with [DONE]. `left_out` are parameters of a
    request that it refuses.
    """

    prompts: Prompts = Prompts.IDS
    usage: bool = True
    done: bool = True
    left_out: list[str] = []

    @property
    def open_only(self) -> list[str]:
        """Reasons why results of this server can only be of the open division; empty if there are none."""
        reasons = [] if self.usage else ["the server reports no token counts (usage)"]
        if self.prompts is Prompts.CHAT:
            reasons.append(
                "the server's chat template changes the prompts, so that they are not those of the benchmark"
            )
        return reasons


class Simulation(Record, frozen=True, kw_only=True):
    """The simulation of a server: a profile with this `sha256`, and the MLPerf keys of its `system` description.

    `source` says where the profile's figures come from, `faults` which the server was asked for.
    """

    profile: str
    title: str
    sha256: str
    seed: int
    faults: str
    source: str
    system: dict[str, str]


class ServerIdentity(Record, frozen=True, kw_only=True):
    """Reports of a server that the job did not start about itself, by name; the order of its answers does not count.

    `process_started_s` is when its process started, in seconds since 1970; None where it reports none, or where several
    processes answer at its address. `unanswered` are the pages that it did not answer, each with the reason in words.
    """

    reported: dict[str, str] = {}
    process_started_s: float | None = None
    unanswered: dict[str, str] = {}


class NodeRecord(Record, frozen=True, kw_only=True):
    """The part of a server on one of several nodes: its command there, and the command of the launcher as a process.

    `env` is what it has beside the server's own. `log`, `events` (the states of its supervisor) and `report` (what it
    said of itself before the start) are files of this machine.
    """

    name: str
    launcher: str
    argv: list[str] = []
    env: dict[str, str] = {}
    log: str = ""
    events: str = ""
    report: str = ""
    supervisor_pid: int | None = None

    @property
    def hosts(self) -> set[str]:
        """The name and the address of another machine; none for a process of this one."""
        return set() if self.launcher == "local" else {self.name, self.env.get("VLLM_HOST_IP", "")} - {""}


class ContainerRecord(Record, frozen=True, kw_only=True):
    """The container that a server runs in, and the image.

    `image` is as it was given, `reference` names exactly what was run: by its digest where a registry has it. `device`
    is what the engine gave it, `options` are the user's words for the engine. `mounts` are places of this machine, each
    with `:ro` where it is read-only; `passed` are variables of this environment, by name.
    """

    engine: str
    engine_version: str
    image: str
    digest: str
    reference: str
    device: str = ""
    shm_size: str = ""
    options: list[str] = []
    mounts: list[str] = []
    passed: list[str] = []

    @property
    def words(self) -> str:
        """The image with its digest, and the engine with its version, in words."""
        engine = f"{self.engine} {self.engine_version}".strip()
        return f"the container image {self.image} ({self.digest}) by {engine}"


class ServerRecord(Record, frozen=True, kw_only=True):
    """A vLLM server. `owned` tells whether this run started it; then `argv`, `env`, `log` and `supervisor_pid` are set.

    `options` are those of vLLM, by its full names without dashes: those that `argv` gives, always read from it, and of
    a server at --api_server those that it reports. `endpoint` is its base URL, all that stands before /v1 (unix:///PATH
    for a Unix socket), `model_name` the name it serves, `adapter_of` the model that this one is an adapter of,
    `answered_by` the one in its answers to the probe, `software` the program, `version` what its /version says,
    each empty where it is not known. `dialect` is None for a server that lists the ids of the tokens that it
    generates. `replicas` are the endpoints of further servers of the same model, over which the client spreads its
    requests; `members` are their records where they are ours. `ca_file` holds the certificates that a https://
    endpoint is checked against, beside the system's; `access` names the variables that hold its key and headers.
    `unchecked` says in words what the probe could not find out. `model_folder` is the folder that a server at
    --api_server reports its model's files in, where that is on this machine; empty otherwise. `niceness` is what
    its processes and their scheduling group have more of than ours while the latency of its answers is measured.
    `identities` says by endpoint what servers at --api_server report of themselves. `nodes` are those of a server
    over several, its head first. `container` is where it runs, and `argv` its command inside; None outside of a
    container. `simulated` is set where no model is served at all.
    """

    endpoint: str
    replicas: list[str] = []
    members: list[ServerRecord] = []
    nodes: list[NodeRecord] = []
    api: Api = Api.COMPLETIONS
    dialect: Dialect | None = None
    ca_file: str = ""
    access: Access = Access()
    unchecked: list[str] = []
    model_name: str
    adapter_of: str = ""
    answered_by: str = ""
    max_model_len: int
    software: str = "vLLM"
    version: str
    owned: bool
    argv: list[str] = []
    options: dict[str, OptionValue] = {}
    env: dict[str, str] = {}
    container: ContainerRecord | None = None
    model_folder: str = ""
    identities: dict[str, ServerIdentity] = {}
    niceness: int = 0
    packages: dict[str, str] = {}
    log: str = ""
    supervisor_pid: int | None = None
    started_at: str = ""
    ready_after_s: float | None = None
    simulated: Simulation | None = None

    def __post_init__(self) -> None:
        if self.argv:
            force_setattr(self, "options", given_options(self.argv))

    @property
    def named(self) -> str:
        """The program that serves, with its version."""
        return f"{self.software} {self.version}".strip() if self.software else "a server of unknown software"

    @property
    def open_only(self) -> list[str]:
        """Reasons why results of this server can only be of the open division; empty if there are none."""
        reasons = list(self.dialect.open_only) if self.dialect else []
        if self.adapter_of:
            reasons.append(f"{self.model_name} is an adapter, which changes the weights of {self.adapter_of}")
        return reasons

    @property
    def endpoints(self) -> list[str]:
        """All servers: `endpoint` and its replicas."""
        return [self.endpoint, *self.replicas]

    @property
    def supervisors(self) -> dict[int, str]:
        """The processes that own those of them that are ours, each with its server's endpoint."""
        own = {self.supervisor_pid: self.endpoint} if self.owned and self.supervisor_pid is not None else {}
        own |= {node.supervisor_pid: self.endpoint for node in self.nodes if node.supervisor_pid is not None}
        return own | {pid: endpoint for member in self.members for pid, endpoint in member.supervisors.items()}


def counting(server: ServerRecord) -> list[str]:
    """Return sentences on how token ids and counts of a server's answers are obtained: for each page and the run."""
    dialect = server.dialect
    if dialect is None:
        return ["Token ids are those that the server lists; it counts as many for each answer."]
    if dialect.prompts is Prompts.AUDIO:
        return ["The server gives transcripts, and its usage counts their tokens, the end token included."]
    if dialect.prompts is Prompts.PICTURE:
        return [
            "The server gives text, which is logged; its usage counts the tokens of answers, and of prompts with those "
            "of their pictures, which must be as many as the model's own chat template and picture size give."
        ]
    counts = (
        "its usage counts them"
        if dialect.usage
        else ("it does not count them either: the count is that of the same tokenizer")
    )
    sentences = [
        f"The server gives text and no token ids. Ids are what the model's own tokenizer makes of the text; {counts}."
    ]
    if dialect.prompts is Prompts.TEXT:
        sentences.append("Prompts were sent as text, because the server takes no token ids.")
    if dialect.prompts is Prompts.CHAT:
        sentences.append("Prompts were sent as messages, to which the server's chat template adds tokens.")
    refused = [name for name in dialect.left_out if name != "stream_options"]
    if refused:
        sentences.append(f"The server takes no {', '.join(refused)}: those were not asked for.")
    if dialect.open_only:
        sentences.append("Results are of the open division alone.")
    return sentences
