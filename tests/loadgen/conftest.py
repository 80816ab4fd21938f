"""A dataset of short prompts and the settings of runs against the test peer."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Fixtures that tests of several parts share.
sys.path.insert(0, str(Path(__file__).parent / "client"))
sys.path.insert(0, str(Path(__file__).parent))

from fake_vllm import prompt
from msgspec.structs import replace
from word_runs import word_records

from builders import short_dataset
from cm4vllm.loadgen.settings import run_settings
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.run import RunSettings
from cm4vllm.records.server import Api, ServerRecord
from cm4vllm.rules import ExecutionMode, Mode, Scenario, terms
from cm4vllm.serving.probing.server_probe import probe
from text_server import MODEL

SAMPLES = 64

MakeSettings = Callable[..., RunSettings]


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A dataset file of 64 samples, and its record."""
    return short_dataset(tmp_path_factory.mktemp("dataset"), [prompt(i) for i in range(SAMPLES)])


@pytest.fixture(scope="session")
def make_settings(dataset) -> MakeSettings:
    """Make the settings of a rehearsal of llama3.1-8b, or another benchmark, against an endpoint."""

    def make(
        endpoint: str,
        scenario: str,
        mode: str,
        *,
        target_qps: float = 100,
        test_query_count: int = 64,
        max_model_len: int = 2048,
        self_check: bool = False,
        niceness: int = 0,
        benchmark: str = "llama3.1-8b",
        **more,
    ) -> RunSettings:
        run_terms = terms("v6.1", benchmark, Scenario(scenario), Mode(mode))
        conf = user_conf(
            run_terms,
            ExecutionMode.TEST,
            target_qps=target_qps,
            test_query_count=test_query_count,
            dataset_samples=dataset.samples,
        )
        server = ServerRecord(
            endpoint=endpoint,
            model_name="tiny",
            max_model_len=max_model_len,
            version="0",
            owned=False,
            niceness=niceness,
        )
        model = ModelRecord(name="tiny", path="", source="made by the test", sha256="", min_tokens=2)
        return run_settings(
            conf,
            model=model,
            dataset=dataset,
            server=server,
            target_qps=target_qps,
            target_qps_source="the test's",
            self_check=self_check,
            **more,
        )

    return make


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """The dataset and the model of runs against a server that gives text."""
    return word_records(tmp_path_factory.mktemp("words"))


@pytest.fixture
def settings_for(make_settings, words):
    """Make the settings of a run against a text server, in the dialect that the probe finds."""
    dataset, model = words

    def make(server, scenario, mode="accuracy", *, api=Api.COMPLETIONS, **more):
        record = probe(server.endpoint, MODEL, text=True, max_model_len=2048, api=api)
        made = make_settings(server.endpoint, scenario, mode, stream_interval=1 if scenario == "Server" else 0, **more)
        return replace(made, server=record, dataset=dataset, model=model)

    return make
