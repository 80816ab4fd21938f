"""Real folders of results: LoadGen's own logs, and records written through their types."""

import shutil
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "loadgen"))

from fake_vllm import FakeVllm, prompt
from made_records import (
    COMMAND,
    DATASET_RECORD,
    MEASURED,
    MODEL,
    MODEL_RECORD,
    SAMPLES,
    SERVER,
    SYSTEM,
    USER_CONF,
    accuracy_record,
    client_of,
    describe,
    probe,
    published_records,
    run_record,
)
from metrics_peer import Peer
from tests.report.parsed_page import Page

from builders import campaign_record, search_record, write_dataset
from cm4vllm import __version__
from cm4vllm.common.files import sha256_of, write_text
from cm4vllm.common.records import read_record, write_record
from cm4vllm.loadgen.process.runner import run as measure_run
from cm4vllm.loadgen.settings import run_settings
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.records.accuracy import ACCURACY_FILE
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.checker import CHECKER_FILE, CheckerRecord, CheckerRun
from cm4vllm.records.machine import CpuFacts, HostFacts, MachineFacts, MemoryFacts
from cm4vllm.records.metrics import ServerMetrics, Timing
from cm4vllm.records.run import RUN_FILE
from cm4vllm.records.searches.rate_search import SEARCH_FILE, Interval
from cm4vllm.report.summary import render
from cm4vllm.results.campaign_results import load
from cm4vllm.rules import Division, ExecutionMode, Mode, Scenario, terms
from cm4vllm.serving.probing.server_metrics import sampled
from standstill import repeat_after_standstill


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory):
    """A rehearsal's whole folder of results, around four short runs of the real LoadGen."""
    out = tmp_path_factory.mktemp("campaign") / "test"
    root = out / "runs" / SYSTEM / MODEL
    jobs = []
    for scenario, mode in product(MEASURED, Mode):
        folder = root / scenario / mode
        folder.mkdir(parents=True)
        (folder / "user.conf").write_text(USER_CONF)
        argv = [sys.executable, str(Path(__file__).with_name("loadgen_sut.py")), folder, scenario, mode, str(SAMPLES)]
        jobs.append((folder, scenario, mode, argv, subprocess.Popen(argv, stdout=subprocess.DEVNULL)))
    for folder, scenario, mode, argv, process in jobs:
        assert process.wait(timeout=120) == 0
        repeat_after_standstill(argv, folder)
        run = run_record(folder, scenario, mode, client_of(folder))
        write_record(folder / RUN_FILE, run)
        if mode is Mode.ACCURACY:
            values = {"rouge1": 41.5, "rouge2": 12.25, "rougeL": 24.3, "rougeLsum": 36.125, "gen_len": 8123.0}
            write_record(folder / ACCURACY_FILE, accuracy_record(values, run, folder / "mlperf_log_accuracy.json"))
    write_record(
        out / CAMPAIGN_FILE,
        campaign_record(
            command=COMMAND,
            cm4vllm_version=__version__,
            commit="0123abcd",
            submitter="not-stated",
            started_at="2026-11-20T09:59:00+00:00",
            system=SYSTEM,
            model=MODEL,
        ),
    )
    describe(out, division=Division.OPEN, submitter="not-stated")
    write_record(
        out / "system" / "machine.json",
        MachineFacts(
            host=HostFacts(
                os_name="Debian", os_version="12", kernel="6.1", machine="x86_64", python="3.11.2", virtualised=True
            ),
            cpu=CpuFacts(
                model_name="Intel(R) Xeon(R) Processor",
                sockets=1,
                cores_per_socket=2,
                threads_per_core=1,
                logical_cpus=2,
                max_mhz=None,
                caches={"L2": "2 MiB"},
                numa_nodes=1,
                flags=["avx2"],
            ),
            memory=MemoryFacts(total_bytes=8 * 2**30, source="MemTotal", usable_bytes=8 * 2**30),
            disks=[],
            root_bytes=10**11,
            network=[],
            gpus=[],
        ),
    )
    write_record(out / "server" / "server.json", SERVER)
    write_record(
        out / CHECKER_FILE,
        CheckerRecord(
            commit="b66003e1",
            round="v6.1",
            passed=True,
            runs=[
                CheckerRun(
                    name=name, argv=[], status=0, results=2, errors=[], warnings=warnings, crashed=False, passed=True
                )
                for name, warnings in (
                    ("submission_checker", ["accuracy below the target"]),
                    ("submission_checker_old", []),
                )
            ],
        ),
    )
    return out


@pytest.fixture(scope="session")
def measured_runs(real_runs, tmp_path_factory):
    """The rehearsal's folder again, with runs that the client made: each sample's times, and the server's metrics."""
    out = Path(shutil.copytree(real_runs, tmp_path_factory.mktemp("measured") / "test"))
    shutil.rmtree(out / "runs")
    dataset = write_dataset(tmp_path_factory.mktemp("dataset"), map(prompt, range(SAMPLES)))
    # Often, so that a run of 4 s has enough samples where the machine stands still for most of it.
    often = partial(sampled, interval_s=0.25)
    with Peer() as peer, pytest.MonkeyPatch.context() as patch:
        patch.setattr("cm4vllm.loadgen.process.runner.sampled", often)
        for scenario in MEASURED:
            for mode in Mode:
                folder = out / "runs" / SYSTEM / MODEL / scenario / mode
                run_terms = terms("v6.1", "llama3.1-8b", scenario, mode)
                conf = user_conf(
                    run_terms, ExecutionMode.TEST, target_qps=40, test_query_count=160, dataset_samples=SAMPLES
                )
                record = measure_run(
                    run_settings(
                        conf,
                        model=MODEL_RECORD,
                        target_qps=40,
                        target_qps_source="the test's",
                        self_check=False,
                        dataset=msgspec.structs.replace(DATASET_RECORD, path=str(dataset), sha256=sha256_of(dataset)),
                        server=msgspec.structs.replace(SERVER, endpoint=peer.endpoint, owned=False),
                    ),
                    folder,
                )
                if mode is Mode.ACCURACY:
                    values = {"rouge1": 38.5, "rouge2": 12.25, "rougeL": 24.3, "rougeLsum": 36.125, "gen_len": 8123.0}
                    write_record(
                        folder / ACCURACY_FILE, accuracy_record(values, record, folder / "mlperf_log_accuracy.json")
                    )
    return out


@pytest.fixture(scope="session")
def single_stream(real_runs, tmp_path_factory):
    """The rehearsal's folder with a run of llama3.1-8b-edge in the SingleStream scenario, of performance alone."""
    out = Path(shutil.copytree(real_runs, tmp_path_factory.mktemp("edge") / "test"))
    shutil.rmtree(out / "runs")
    dataset = write_dataset(tmp_path_factory.mktemp("dataset"), map(prompt, range(SAMPLES)))
    conf = user_conf(
        terms("v6.1", "llama3.1-8b-edge", Scenario.SINGLE_STREAM, Mode.PERFORMANCE),
        ExecutionMode.TEST,
        target_qps=40,
        test_query_count=SAMPLES,
        dataset_samples=SAMPLES,
    )
    with FakeVllm() as server:
        measure_run(
            run_settings(
                conf,
                model=MODEL_RECORD,
                target_qps_source="1.33 x the mean latency of SingleStream latency, 18.75 ms",
                self_check=False,
                dataset=msgspec.structs.replace(DATASET_RECORD, path=str(dataset), sha256=sha256_of(dataset)),
                server=msgspec.structs.replace(SERVER, endpoint=server.endpoint, owned=False),
            ),
            out / "runs" / SYSTEM / MODEL / "SingleStream" / "performance",
        )
    write_record(
        out / CAMPAIGN_FILE,
        msgspec.structs.replace(
            read_record(out / CAMPAIGN_FILE, CampaignRecord),
            benchmark="llama3.1-8b-edge",
            command=COMMAND.replace("llama3.1-8b", "llama3.1-8b-edge"),
        ),
    )
    return out


@pytest.fixture
def out(real_runs, tmp_path):
    """A copy of the rehearsal's folder that a test may change."""
    return Path(shutil.copytree(real_runs, tmp_path / "test"))


@pytest.fixture
def searched(out):
    measured = ((4.0, 300.0, 40.0), (16.0, 9000.0, 70.0), (8.0, 1500.0, 55.0), (32.0, None, 300.0))
    record = search_record(
        rate=8.0,
        stopped="near enough",
        rehearsal=True,
        probes=[probe(number, *values) for number, values in enumerate(measured, 1)],
        interval=Interval(rate=8.2, low=7.9, high=8.6, probes=4),
    )
    write_record(out / "search" / "Server" / SEARCH_FILE, record)
    return out


@pytest.fixture
def published(tmp_path, neural_magic):
    """The real v4.1 entry whose pages carried tokens/s as samples/s: a 7B model in the open division."""
    model = "neuralmagic_Llama-2-7b-chat-hf-FP8"
    system = "GO_2xRTX4090-reference-cpu-pytorch-v2.2.1-default_config"
    source = neural_magic / "results" / system / model
    out = tmp_path / "valid"
    for scenario in MEASURED:
        for mode in Mode:
            folder = out / "runs" / "GO_2xRTX4090" / model / scenario / mode
            folder.mkdir(parents=True)
            logs = source / scenario.lower() / mode
            for log in (logs / "run_1" if mode is Mode.PERFORMANCE else logs).glob("mlperf_log_*"):
                shutil.copy(log, folder / log.name)
            published_records(folder, terms("v4.1", "llama2-70b-99.9", scenario, mode), model)
    write_record(
        out / CAMPAIGN_FILE,
        campaign_record(
            command="cm run script --tags=run-mlperf,inference,_vllm --model=llama2-70b-99.9 --division=open",
            submitter="NeuralMagic",
            round="v4.1",
            benchmark="llama2-70b-99.9",
            execution_mode=ExecutionMode.VALID,
            started_at="2024-07-26T00:00:00+00:00",
        ),
    )
    write_text(out / "system" / "system.json", (neural_magic / "systems" / f"{system}.json").read_text())
    return out


@pytest.fixture(scope="session")
def server_metrics():
    """Make what a server did in a run."""

    def make(**fields):
        values: dict[str, object] = {
            "samples": 3,
            "interval_s": 2.0,
            "missed": 0,
            "running_max": 20,
            "running_mean": 10.0,
            "waiting_max": 40,
            "waiting_mean": 13.33,
            "kv_cache_usage_max": 0.41,
            "preemptions": 0,
            "prefix_cache_hits": 0,
            "cached_prompt_tokens": 0,
            "prompt_tokens": 7000,
            "generation_tokens": 4000,
            "queue": Timing(requests=64, mean_ms=12.5, p99_at_most_ms=300.0),
            "prefill": Timing(requests=64, mean_ms=3.25, p99_at_most_ms=300.0),
            **fields,
        }
        return ServerMetrics(**values)

    return make


@pytest.fixture
def change():
    """Rewrite a record, or several, with other fields; in a field's name, __ reaches into a record in it."""

    def rewrite(paths, cls, **fields):
        for path in [paths] if isinstance(paths, Path) else paths:
            record = read_record(path, cls)
            for name, value in fields.items():
                record = _replaced(record, name.split("__"), value)
            write_record(path, record)

    return rewrite


def _replaced(record, names, value):
    inner = value if len(names) == 1 else _replaced(getattr(record, names[0]), names[1:], value)
    return msgspec.structs.replace(record, **{names[0]: inner})


@pytest.fixture(scope="session")
def page(real_runs):
    return Page(render(load(real_runs)))
