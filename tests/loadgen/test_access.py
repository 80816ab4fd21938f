"""Whole runs against a server behind a prefix, a key and a header: the values are sent, and stand nowhere."""

import contextlib
from functools import partial
from pathlib import Path

import psutil
import pytest
from fake_vllm import Behaviour, FakeVllm, expected_tokens, prompt
from msgspec.structs import replace

from cm4vllm.common.errors import RunFailed, UsageError
from cm4vllm.loadgen.client.wire import Sampling, completion_body
from cm4vllm.loadgen.identity import settings_sha256
from cm4vllm.loadgen.process import selfcheck
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.process.sample_library import SampleLibrary
from cm4vllm.records.access import Access
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_accuracy_log
from gateway import Gateway

SECRET, TENANT = "sk-very-secret-value-2", "tenant-of-the-test"
METRICS = (Path(__file__).parents[1] / "serving/recorded/metrics-after.txt").read_text()


@pytest.fixture
def secured(monkeypatch, make_settings):
    """Make the settings of a run that sends the key and the header."""
    monkeypatch.setenv("MY_KEY", SECRET)
    monkeypatch.setenv("MY_HEADERS", f"X-Tenant: {TENANT}")

    def make(gateway, scenario, mode="accuracy", **more):
        settings = make_settings(gateway.endpoint, scenario, mode, **more)
        server = replace(
            settings.server, access=Access(key_env="MY_KEY", headers_env="MY_HEADERS"), ca_file=gateway.certificate
        )
        return replace(settings, server=server)

    return make


def written(folder):
    return "".join(path.read_text(errors="replace") for path in folder.parent.rglob("*") if path.is_file())


@pytest.mark.parametrize(("scenario", "tls"), [("Offline", False), ("Server", True)], ids=["http", "https"])
def test_a_run_sends_key_header_and_prefix_with_each_request_and_on_no_command_line(
    tmp_path, secured, scenario, tls, certificate
):
    signed, seen = str(certificate) if tls else "", []

    def look():
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends meanwhile, or is a zombie
                seen.append(" ".join(child.cmdline()))

    with (
        # While the last answers are missing the worker is there to be seen.
        FakeVllm(Behaviour(metrics=lambda: METRICS, held=lambda number, _: number >= 60 and look())) as server,
        Gateway(server.endpoint, "/team/a", SECRET, {"X-Tenant": TENANT}, certificate=signed) as gateway,
    ):
        # The self-check's own server has neither key nor certificate.
        record = run(secured(gateway, scenario, self_check=tls), tmp_path / "run")
    answers = {index: tokens.tolist() for index, tokens, _ in read_accuracy_log(tmp_path / "run" / ACCURACY_LOG)}
    assert answers == {index: expected_tokens(prompt(index), 128, 2) for index in range(64)}
    assert record.client.failed == 0
    assert record.server_metrics is not None
    assert all("/team/a/" in head for head in gateway.heads)
    assert record.settings.server.access.key_env == "MY_KEY"
    assert SECRET not in written(tmp_path / "run")
    assert TENANT not in written(tmp_path / "run")
    assert any("cm4vllm.loadgen.client.worker" in words for words in seen)
    assert not any(SECRET in words or TENANT in words for words in seen)


def test_a_key_that_is_taken_back_ends_the_run_and_is_in_no_file_though_the_server_repeats_it(tmp_path, secured):
    with (
        FakeVllm() as server,
        Gateway(server.endpoint, "", SECRET, {"X-Tenant": TENANT}, fail_from=20) as gateway,
        pytest.raises(RunFailed) as caught,
    ):
        run(secured(gateway, "Offline"), tmp_path / "run")
    assert "HTTP status 401: not allowed with" in caught.value.cause
    assert (tmp_path / "run.failed" / "failure.json").is_file()
    for text in (str(caught.value), written(tmp_path / "run")):
        assert SECRET not in text
        assert TENANT not in text


def test_a_variable_that_is_gone_ends_the_run_before_it_begins(tmp_path, secured, monkeypatch):
    with FakeVllm() as server, Gateway(server.endpoint) as gateway:
        settings = secured(gateway, "Offline")
        monkeypatch.delenv("MY_KEY")
        with pytest.raises(UsageError, match="MY_KEY is not set"):
            run(settings, tmp_path / "run")
        assert not server.bodies


def test_the_server_of_the_self_check_gets_no_key(secured, monkeypatch):
    asked, made = [], selfcheck.worker_settings
    monkeypatch.setattr(selfcheck, "worker_settings", lambda *given: asked.extend(made(*given)) or made(*given))
    settings = secured(Gateway("http://127.0.0.1:9"), "Offline", "performance")
    sampling = Sampling("tiny", settings.max_tokens, settings.min_tokens, settings.stream_interval)
    selfcheck.self_check(settings, SampleLibrary([prompt(0)], partial(completion_body, sampling)))
    assert asked
    assert all(request.access == Access() for request in asked)


def test_the_name_of_the_variable_makes_no_other_run(make_settings):
    settings = make_settings("http://a", "Offline", "accuracy")
    other = replace(settings, server=replace(settings.server, access=Access(key_env="B")))
    assert settings_sha256(settings) == settings_sha256(other)
