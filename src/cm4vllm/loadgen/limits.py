"""A run's needs against the machine's limits, and the number of processes that its client gets.

Each request that is open has a connection: a file descriptor in the client, one in the server, and over TCP a local
port. A run that cannot get what it may need is refused before it begins.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from cm4vllm.common.errors import LimitTooLow
from cm4vllm.hardware.readiness import MachineLimits
from cm4vllm.loadgen.client.wire import SPARE
from cm4vllm.loadgen.settings import MOST_WORKERS
from cm4vllm.records.run import RunSettings, fewer_open_requests
from cm4vllm.records.vllm.server_needs import SERVER_FILES_BESIDE, api_processes
from cm4vllm.rules import Mode, Terms

#: File descriptors of a worker beside its connections: the interpreter's, the socket pair, the event loop's.
FILES_BESIDE = 64
#: Memory of a worker (116 MiB at its peak in a rehearsal, `processes` in run.json), and of each open stream in it
#: (14.4 KiB, docs/measurements.md), in bytes.
WORKER_BYTES, STREAM_BYTES = 128 * 2**20, 16 * 2**10
#: LoadGen draws the times of the queries: a run has fewer than the mean and so many standard deviations.
_DEVIATIONS = 4
#: Exponents of the rates among which the highest is looked for: 0.01 to 1,000,000 queries/s, in steps of 0.1 %.
_STEP, _EXPONENTS = 1.001, range(-4608, 13823)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Bounds on the number of a run's requests that are open at once.

    `fixed` is their number where no rate has a part in it. Else LoadGen issues queries at the run's rate, for
    `duration_s` and `count` at least (None: not known), and within the latency limits none is open for longer than
    `answer_s` (None: no limits). What needs more than that has missed the limits.
    """

    fixed: int = 0
    count: int | None = None
    duration_s: float = 0.0
    answer_s: float | None = None

    def at(self, rate: float | None) -> int | None:
        """Return the most that are open at `rate`, in queries/s; None where they have no bound that is known."""
        if self.fixed:
            return self.fixed
        return min((most for most in (self._queries(rate), self._answers(rate)) if most is not None), default=None)

    def words(self, rate: float | None) -> str:
        """Return the source of the bound at `rate`."""
        if self.fixed:
            return "the client bounds them" if self.fixed > 1 else "each query follows the answer before it"
        if self.at(rate) == self._queries(rate):
            return "the run has so many queries"
        return f"{rate or 0:,.6g} queries/s, each answered within {self.answer_s:,.1f} s by the latency limits"

    def _queries(self, rate: float | None) -> int | None:
        if self.count is None or (rate is None and self.duration_s):
            return None
        expected = (rate or 0) * self.duration_s
        return max(self.count, math.ceil(expected + _DEVIATIONS * math.sqrt(expected)))

    def _answers(self, rate: float | None) -> int | None:
        return None if rate is None or self.answer_s is None else math.ceil(rate * self.answer_s)


def load_of(
    terms: Terms, conf: str, *, samples: int, max_tokens: int, max_in_flight: int, audit_config: str = ""
) -> Load:
    """Return the load of a run by its terms, the text `conf` of its user.conf and the size of its sample library."""
    if not terms.paced:
        return Load(fixed=max_in_flight if terms.at_once else 1)
    limits = terms.limits
    answer_s = (
        None
        if limits is None
        else (limits.latency_ms or (limits.ttft_ms or 0) + max_tokens * (limits.tpot_ms or 0)) / 1e3
    )
    if terms.mode is Mode.ACCURACY:
        return Load(count=samples, answer_s=answer_s)
    least = _setting(conf, "min_query_count")
    if audit_config and least is not None:
        least = max(least, _setting(audit_config, "min_query_count") or 0, samples)
    duration_ms = _setting(conf, "min_duration")
    return Load(
        # LoadGen may issue whole passes over the samples (sample_concatenate_permutation, loadgen/loadgen.cc).
        count=None if least is None else -(-least // samples) * samples,
        duration_s=(terms.min_duration_ms if duration_ms is None else duration_ms) / 1e3,
        answer_s=answer_s,
    )


def _setting(conf: str, key: str) -> int | None:
    """Return the greatest value that a user.conf has of a key."""
    return max(map(int, re.findall(rf"^\S+\.{key}\s*=\s*(\d+)", conf, re.MULTILINE)), default=None)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A run's demand on the machine: `open` requests at once, over `servers` of `api_processes` each.

    `title` names the run, `why` says what bounds `open`. `api_processes` is 0 where the job starts no server. `kept` is
    how many connections to each server a worker has beside those in use. `tcp` is False for Unix sockets.
    `ring_buffer_bytes` is what the servers must find free in /dev/shm. `workers` is the number of the client's
    processes, on which the files, ports and memory depend: 0 until `needs` has found it, where none was asked for.
    """

    title: str
    open: int
    why: str
    at_once: bool
    servers: int = 1
    api_processes: int = 0
    tcp: bool = True
    ring_buffer_bytes: int = 0
    workers: int = 0

    @property
    def kept(self) -> int:
        """Return how many connections to each server a worker keeps open besides those in use."""
        return 0 if self.at_once else 2 * SPARE

    @property
    def client_files(self) -> int:
        """The files that each process of the client may have open."""
        return math.ceil(self.open / self.workers) + self.kept * self.servers + FILES_BESIDE

    @property
    def to_each_server(self) -> int:
        """The number of connections that the run opens to one server."""
        return math.ceil(self.open / self.servers) + self.kept * self.workers

    @property
    def server_files(self) -> int:
        """The files that each process of a server that takes connections may have open; 0 for other servers."""
        count = self.api_processes
        return math.ceil(self.to_each_server / count) + SERVER_FILES_BESIDE if count else 0

    @property
    def ports(self) -> int:
        """Return how many local ports the run may need; 0 for a Unix socket."""
        return self.to_each_server if self.tcp else 0

    @property
    def memory_bytes(self) -> int:
        """Return the memory that the client may need, in bytes."""
        return self.workers * WORKER_BYTES + self.open * STREAM_BYTES

    @property
    def most_files(self) -> int:
        """The files that the process with the most of them may have open."""
        return max(self.client_files, self.server_files)

    @property
    def files_in_words(self) -> str:
        """The open files that each process may need, on both sides."""
        client = f"{self.client_files:,} open files in {_processes(self.workers)} of the client"
        if not self.server_files:
            return client
        server = "each server" if self.servers > 1 else "the server"
        return f"{client}, {self.server_files:,} in {_processes(self.api_processes)} of {server}"

    @property
    def words(self) -> str:
        """The run's needs in one sentence."""
        opened = "1 request open at a time" if self.open == 1 else f"{self.open:,} requests open at once"
        return f"{self.title} may have {opened} ({self.why}): {self.files_in_words}"


def _processes(count: int) -> str:
    return "a process" if count == 1 else f"each of {count} processes"


def demand_of(settings: RunSettings) -> Demand:
    """Return the demand of a run on the machine."""
    server, terms = settings.server, settings.terms
    load = load_of(
        terms,
        settings.user_conf,
        samples=settings.samples,
        max_tokens=settings.max_tokens,
        max_in_flight=settings.max_in_flight,
        audit_config=settings.audit_config,
    )
    return Demand(
        title=f"the {settings.title} run",
        open=load.at(settings.target_qps) or settings.samples,
        why=load.words(settings.target_qps),
        at_once=terms.at_once,
        servers=len(server.endpoints),
        api_processes=api_processes(server.options) if server.owned else 0,
        tcp=not all(endpoint.startswith("unix:") for endpoint in server.endpoints),
        workers=settings.num_workers,
    )


def needs(demand: Demand, limits: MachineLimits) -> Demand:
    """Return the demand of a run with the number of its workers on a machine with these limits.

    It has one worker, and more where one may open fewer files than the run may need. Raises LimitTooLow.
    """
    asked = _with_workers(demand, limits)
    if (error := _limit_error(asked, limits)) is not None:
        raise error
    return asked


def highest_rate(at: Callable[[float], Demand], limits: MachineLimits) -> tuple[float, str]:
    """Return the highest rate, to 0.1 % and in queries/s, of the runs that the machine allows, and why no higher one.

    `at` gives the demand of a run at a rate. Infinite, with no reason, where none of up to 1,000,000 is refused.
    """
    refused = bisect_left(_EXPONENTS, True, key=lambda exponent: bool(_refusal(at(_rate(exponent)), limits)))
    if refused == len(_EXPONENTS):
        return math.inf, ""
    return _rate(_EXPONENTS[max(refused - 1, 0)]), _refusal(at(_rate(_EXPONENTS[refused])), limits)


def _rate(exponent: int) -> float:
    """Return a rate to four digits, as searches write it."""
    return float(f"{_STEP**exponent:.4g}")


def _refusal(demand: Demand, limits: MachineLimits) -> str:
    """Return the limit that a run would exceed, in words; empty for none."""
    error = _limit_error(_with_workers(demand, limits), limits)
    return error.what if error else ""


def _with_workers(demand: Demand, limits: MachineLimits) -> Demand:
    return replace(demand, workers=demand.workers or _least_workers(demand, limits) or MOST_WORKERS)


def _least_workers(demand: Demand, limits: MachineLimits) -> int | None:
    """Return the least number of workers of which each may open the files that it may need; None where none does."""
    files, counts = limits.open_files, range(1, MOST_WORKERS + 1)
    return next((n for n in counts if files is None or replace(demand, workers=n).client_files <= files), None)


def _limit_error(asked: Demand, limits: MachineLimits) -> LimitTooLow | None:
    """Return the refusal of a run that may need more than the machine allows; None where it has enough of all."""
    ports, memory, shared = limits.local_ports, limits.memory_bytes, limits.shared_memory_bytes
    if limits.open_files is not None and asked.most_files > limits.open_files:
        return _files_refused(asked, limits, limits.open_files)
    if ports is not None and asked.ports > ports:
        return LimitTooLow(
            f"{asked.title} may need {asked.ports:,} connections to a server, the system has {ports:,} local ports",
            cause=f"/proc/sys/net/ipv4/ip_local_port_range bounds the connections to one address; {asked.words}",
            remedy="widen it, as root: sysctl net.ipv4.ip_local_port_range='1024 65535'; or have a server that runs "
            "already listen on a Unix socket: --api_server=unix:///PATH; or "
            + fewer_open_requests(at_once=asked.at_once),
        )
    if memory is not None and asked.memory_bytes > memory:
        return LimitTooLow(
            f"the client of {asked.title} may need {asked.memory_bytes / 2**20:,.0f} MiB of memory, "
            f"{memory / 2**20:,.0f} MiB are free",
            cause=f"each process of it takes {WORKER_BYTES >> 20} MiB, each open request {STREAM_BYTES >> 10} KiB; "
            f"{asked.words}",
            remedy=f"free memory; or {fewer_open_requests(at_once=asked.at_once)}",
        )
    if shared is not None and asked.ring_buffer_bytes > shared:
        return LimitTooLow(
            f"the server needs {asked.ring_buffer_bytes / 2**20:,.0f} MiB of shared memory, "
            f"{shared / 2**20:,.0f} MiB of /dev/shm are free",
            cause="vLLM's engine and its workers, several of them here, exchange messages in it",
            remedy="give the container more: docker run --shm-size=16g or --ipc=host; on a machine of your own, as "
            "root: mount -o remount,size=16g /dev/shm",
        )
    return None


def _files_refused(asked: Demand, limits: MachineLimits, files: int) -> LimitTooLow:
    """Return the refusal of a run that may need more open files than the `files` that a process may have."""
    where, remedies = [], [f"raise the limit of this shell, as root: ulimit -Hn {asked.most_files}"]
    if asked.client_files > files:
        where.append(f"{asked.client_files:,} open files in {_processes(asked.workers)} of the client")
        if enough := _least_workers(asked, limits):
            remedies.append(f"spread the client over more processes: --num_workers={enough}")
    if asked.server_files > files:
        where.append(f"{asked.server_files:,} open files in {_processes(asked.api_processes)} of the server")
        if files > SERVER_FILES_BESIDE:
            count = math.ceil(asked.to_each_server / (files - SERVER_FILES_BESIDE))
            remedies.append(f"spread the server over more processes: --extra_args=--api-server-count={count}")
    return LimitTooLow(
        f"{asked.title} may need {' and '.join(where)}, {files:,} are allowed",
        cause=f"each open request has its own connection; {asked.words}",
        remedy="; or ".join([*remedies, fewer_open_requests(at_once=asked.at_once)]),
    )
