"""What a server says of itself, and whether it can be measured: proved by a completion, never by /health."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from cm4vllm.common.errors import ServerUnreachable, ServerUnsuitable, UsageError, nearest
from cm4vllm.serving.records import ServerRecord

__all__ = ["base_url", "probe", "require_completion"]

#: Seconds that one answer to a probe may take: a server's first completion may include compilation.
TIMEOUT_S = 120.0
#: The probe's prompt and answer: token ids that every vocabulary has, and few of them.
PROMPT = [1, 2, 3]
TOKENS = 4

_NOT_VLLM = "give the base URL of a vLLM server, such as http://127.0.0.1:8000"
_PREFIX_CACHING = re.compile(r'vllm:cache_config_info\{[^}]*enable_prefix_caching="True"')


def base_url(address: str) -> str:
    """Return the URL of a server without path: http://HOST:PORT, given that, HOST:PORT, or a URL that ends in /v1."""
    url = address.strip()
    if "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise UsageError(f"--api_server={address} is not a URL", remedy=_NOT_VLLM)
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise UsageError(f"--api_server={address} names a path", remedy=_NOT_VLLM)
    return f"{parts.scheme}://{parts.netloc}"


def probe(address: str, model_name: str = "") -> ServerRecord:
    """Look at a server that already runs, and prove that it can be measured.

    `model_name` is the model to be measured; it may be left out when the server serves one. Raises ServerUnreachable
    when nothing answers, and ServerUnsuitable when it is no vLLM, serves another model, does not tell token ids, or
    has prefix caching on.
    """
    endpoint = base_url(address)
    version = _version(endpoint)
    name, max_model_len = _served(endpoint, model_name)
    require_completion(endpoint, name)
    _require_streamed_ids(endpoint, name)
    if _PREFIX_CACHING.search(_get(endpoint, "/metrics")):
        raise ServerUnsuitable(
            f"the server at {endpoint} has prefix caching on",
            cause="the rules of MLPerf do not allow work to be saved between queries",
            remedy="start it with --no-enable-prefix-caching",
        )
    return ServerRecord(endpoint=endpoint, model_name=name, max_model_len=max_model_len, version=version, owned=False)


def require_completion(endpoint: str, model_name: str) -> None:
    """Raise unless the server answers a prompt of token ids with the exact ids of a whole answer."""
    answer = _json(endpoint, "/v1/completions", _request(model_name))
    try:
        ids, counted = answer["choices"][0].get("token_ids"), answer["usage"]["completion_tokens"]
    except (KeyError, IndexError, TypeError) as error:
        raise _unsuitable(endpoint, f"its answer to a completion lacks {error}") from error
    _require_ids(endpoint, ids, counted)


def _require_streamed_ids(endpoint: str, model_name: str) -> None:
    body = {**_request(model_name), "stream": True, "stream_options": {"include_usage": True}}
    ids: list[int] = []
    counted = None
    for line in _get(endpoint, "/v1/completions", body).splitlines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        try:
            event = json.loads(data)
            ids += [token for choice in event.get("choices", []) for token in choice.get("token_ids") or []]
            counted = (event.get("usage") or {}).get("completion_tokens", counted)
        except (ValueError, AttributeError, TypeError) as error:
            raise _unsuitable(endpoint, f"an event of its stream is not understood: {error}") from error
    _require_ids(endpoint, ids, counted)


def _request(model_name: str) -> dict[str, Any]:
    return {"model": model_name, "prompt": PROMPT, "max_tokens": TOKENS, "min_tokens": TOKENS, "ignore_eos": True,
            "temperature": 0, "return_token_ids": True}


def _require_ids(endpoint: str, ids: Any, counted: Any) -> None:
    if not isinstance(ids, list) or not ids:
        raise _unsuitable(endpoint, "it does not tell the token ids of its answers (return_token_ids)",
                          "serve the model with vLLM 0.10.2 or newer")
    if len(ids) != TOKENS or counted != TOKENS:
        raise _unsuitable(endpoint, f"of {TOKENS} tokens asked for it sent {len(ids)} and counted {counted}")


def _served(endpoint: str, model_name: str) -> tuple[str, int]:
    """Return the name of the model to be measured, as the server knows it, and its greatest length in tokens."""
    listed = _json(endpoint, "/v1/models")
    try:
        models = {model["id"]: model.get("max_model_len") for model in listed["data"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise _unsuitable(endpoint, "its /v1/models is not understood") from error
    if not models:
        raise _unsuitable(endpoint, "it serves no model")
    name = model_name or next(iter(models))
    if name not in models or (not model_name and len(models) > 1):
        raise ServerUnsuitable(
            f"the server at {endpoint} does not serve {name!r}" if model_name else
            f"the server at {endpoint} serves {len(models)} models", cause=f"it serves {', '.join(models)}",
            remedy=f"--vllm_model_name: {nearest(name, models)}",
        )
    if not isinstance(models[name], int):
        raise _unsuitable(endpoint, "it does not tell max_model_len")
    return name, models[name]


def _version(endpoint: str) -> str:
    answer = _json(endpoint, "/version")
    version = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, str):
        raise _unsuitable(endpoint, "it tells no version of vLLM")
    return version


def _json(endpoint: str, path: str, body: dict[str, Any] | None = None) -> Any:
    text = _get(endpoint, path, body)
    try:
        return json.loads(text)
    except ValueError as error:
        raise _unsuitable(endpoint, f"what it says at {path} is not JSON") from error


def _get(endpoint: str, path: str, body: dict[str, Any] | None = None) -> str:
    """Return the text at `path`, posting `body` where there is one."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(endpoint + path, data=data, headers={"Content-Type": "application/json"})  # noqa: S310
    # A proxy of the environment is meant for other hosts than the machine under test.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(500).decode(errors="replace")
        raise _unsuitable(endpoint, f"{path} answered with status {error.code}: {' '.join(said.split())[:300]}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ServerUnreachable(
            f"nothing answers at {endpoint}", cause=str(reason) or type(error).__name__,
            remedy="start the server, or correct --api_server; without it, vLLM is installed and started for the run",
        ) from error


def _unsuitable(endpoint: str, cause: str, remedy: str = _NOT_VLLM) -> ServerUnsuitable:
    return ServerUnsuitable(f"the server at {endpoint} cannot be measured", cause=cause, remedy=remedy)
