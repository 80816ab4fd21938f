"""MLCommons endpoints' HTTP client (github.com/mlcommons/endpoints, Python >= 3.12), with one worker process.

Its own pool, adapter for /v1/completions, and SSE accumulator, driven in a closed loop as its
utils/benchmark_httpclient drives it. It gives texts: the words of the mock server, one a token, are counted.
"""

import asyncio
import json
import threading
from array import array
from collections.abc import Sequence

from inference_endpoint.config.schema import APIType
from inference_endpoint.core.types import Query, QueryResult
from inference_endpoint.endpoint_client.config import HTTPClientConfig
from inference_endpoint.endpoint_client.http_client import HTTPEndpointClient

from clients.task import Done, First, Task, bodies


class Endpoints:
    """The client, and a coroutine in its loop that keeps it busy."""

    def __init__(self, task: Task, first: First, done: Done) -> None:
        self._first, self._done = first, done
        self._in_flight = task.in_flight
        self._data = [{**body, "input_tokens": body.pop("prompt")} for body in map(json.loads, bodies(task))]
        self._client = HTTPEndpointClient(
            HTTPClientConfig(
                endpoint_urls=[f"{task.url}/v1/completions"],
                api_type=APIType.OPENAI_COMPLETIONS,
                num_workers=1,
                max_connections=task.in_flight,
                warmup_connections=0,
                log_level="CRITICAL",
            )
        )

    def submit(self, queries: Sequence[tuple[int, int]]) -> None:
        asyncio.run_coroutine_threadsafe(self._drive(queries), self._client.loop)

    def close(self) -> None:
        # Its shutdown waits for its loop, which is the one that calls `done`.
        threading.Thread(target=self._client.shutdown).run()

    async def _drive(self, queries: Sequence[tuple[int, int]]) -> None:
        waiting, open_now, answered = iter(queries), 0, 0
        while answered < len(queries):
            for key, index in waiting if open_now < self._in_flight else ():
                self._client.issue(Query(id=str(key), data=self._data[index % len(self._data)]))
                open_now += 1
                if open_now == self._in_flight:
                    break
            result = await self._client.recv()
            while result is not None:
                if isinstance(result, QueryResult):
                    open_now, answered = open_now - 1, answered + 1
                    self._done(int(result.id), array("i", bytes(4 * _word_count(result))))
                result = self._client.poll()


def _word_count(result: QueryResult) -> int:
    if result.error:
        raise RuntimeError(str(result.error))
    output = result.response_output.output
    return (output if isinstance(output, str) else "".join(output)).count("w")
