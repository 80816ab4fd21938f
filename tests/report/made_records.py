"""Records of results, written through their types."""

import json

from builders import scores_of
from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.files import sha256_of, write_json
from cm4vllm.common.records import write_record
from cm4vllm.records.accuracy import ACCURACY_FILE, AccuracyRecord
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.client import ClientRecord, ProcessRecord, SelfCheck, Spread
from cm4vllm.records.described_system import KEYS
from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.run import RUN_FILE, RunRecord, RunSettings
from cm4vllm.records.searches.rate_search import LimitRecord, ProbeRecord, Verdict
from cm4vllm.records.server import Api, ServerRecord
from cm4vllm.rules import Mode, Scenario, terms

SYSTEM = "1xXeon_vLLM-0.32.0"
MODEL = "tiny-llama"
SAMPLES = 64

USER_CONF = """\
*.Offline.target_qps = 100
*.Offline.min_duration = 1
*.Offline.min_query_count = 64
*.Server.target_qps = 250
*.Server.min_duration = 2000
*.Server.min_query_count = 480
*.*.performance_sample_count_override = 64
"""

MODEL_RECORD = ModelRecord(
    name=MODEL,
    path="/srv/models/tiny",
    source="trained by cm4vllm on text made by cm4vllm",
    sha256="ab" * 32,
    parameters=1_234_567,
    architecture="LlamaForCausalLM",
    weight_data_types="bf16",
    min_tokens=2,
    recipe={"seed": "7", "steps": "300"},
)
DATASET_RECORD = DatasetRecord(
    name="tiny-news",
    path="/srv/data/tiny.json",
    source="made by cm4vllm",
    sha256="cd" * 32,
    samples=13368,
    max_input_tokens=256,
    tokenizer_sha256="ef" * 32,
    sentences="punkt-untrained",
    recipe={"seed": "11"},
)
SERVER = ServerRecord(
    endpoint="http://127.0.0.1:8123",
    api=Api.GENERATE,
    model_name=MODEL,
    max_model_len=512,
    version="0.32.0",
    owned=True,
    niceness=10,
    argv=[
        *(
            "/srv/venv/bin/python -m vllm.entrypoints.openai.api_server --model=/srv/models/tiny "
            "--port=8123 --served-model-name"
        ).split(),
        MODEL,
        "--dtype=bfloat16",
    ],
    env={"VLLM_CPU_KVCACHE_SPACE": "1"},
    packages={"vllm": "0.32.0", "torch": "2.13.0+cpu", "python": "3.11.2"},
    started_at="2026-11-20T10:00:00+00:00",
    ready_after_s=31.5,
)
COMMAND = (
    "cm run script --tags=run-mlperf,inference,_vllm,_r6.1 --model=llama3.1-8b --execution_mode=test --division=open"
)

#: The scenarios of the runs.
MEASURED = (Scenario.OFFLINE, Scenario.SERVER)

SELF_CHECK = SelfCheck(
    workers=1,
    tokens=128,
    queries=1200,
    qps=250,
    capacity_qps=50_000,
    busiest="worker 1",
    busiest_share=0.1,
    server_share=0.05,
    added_ttft=Spread(p50_ms=0.31, p99_ms=1.72, max_ms=4.0),
)
LAG = Spread(p50_ms=0.1, p99_ms=0.9, max_ms=2.0)
PROCESSES = [
    ProcessRecord(name="LoadGen", cpu_s=0.2, wall_s=3.0, peak_memory_mib=120.5),
    ProcessRecord(name="worker 1", cpu_s=0.6, wall_s=3.0, peak_memory_mib=41.0, loop_lag=LAG, issue_lag=LAG),
]


def client_of(folder):
    seen = json.loads((folder / "client.json").read_text())
    return ClientRecord(
        requests=seen["requests"],
        completed=seen["requests"],
        failed=0,
        retries=0,
        prompt_tokens=seen["requests"] * 111,
        completion_tokens=seen["completion_tokens"],
        processes=PROCESSES,
        self_check=SELF_CHECK,
    )


def run_record(folder, scenario, mode, client, **settings):
    values: dict[str, object] = {
        "rehearsal": True,
        "terms": terms("v6.1", "llama3.1-8b", scenario, mode),
        "user_conf": USER_CONF,
        "samples": SAMPLES,
        "max_tokens": 128,
        "min_tokens": 2,
        "max_in_flight": 8,
        "target_qps": {Scenario.OFFLINE: 100.0, Scenario.SERVER: 250.0}[scenario],
        "target_qps_source": "0.8 of the rate of the Offline accuracy run",
        "model": MODEL_RECORD,
        "dataset": DATASET_RECORD,
        "server": SERVER,
        **settings,
    }
    made = RunSettings(**values)
    return RunRecord(
        notice=REHEARSAL_NOTICE if made.rehearsal else "",
        settings=made,
        settings_sha256="12" * 32,
        started_at="2024-11-20T10:01:00+00:00",
        ended_at="2024-11-20T10:01:03+00:00",
        duration_s=3.25,
        loadgen_version=read_detail_log(folder / DETAIL_LOG).text_or_none("loadgen_version") or "4.1",
        versions={"uvloop": "0.23.0", "httptools": "0.9.0"},
        client=client,
        files={p.name: sha256_of(p) for p in sorted(folder.glob("mlperf_log_*"))},
    )


def accuracy_record(values, run, log):
    return AccuracyRecord(
        notice=run.notice,
        values=values,
        samples=run.client.completed,
        samples_expected=run.settings.samples,
        scores=scores_of(run.settings.terms, values, samples=run.client.completed),
        tokens=run.client.completion_tokens,
        scorer="rouge-score 0.1.2",
        sentences="punkt-untrained",
        sentences_sha256="",
        log_sha256=sha256_of(log),
        duration_s=1.5,
    )


def describe(out, *, division, submitter, **more):
    """Write the description of a system without accelerators."""
    stated = {
        "division": division,
        "submitter": submitter,
        "status": "rdi",
        "system_type": "datacenter",
        "system_name": SYSTEM,
        "number_of_nodes": "1",
        "host_processor_model_name": "Intel(R) Xeon(R) Processor",
        "host_processors_per_node": "1",
        "host_processor_core_count": "2",
        "host_processor_caches": "L2: 2 MiB",
        "host_processor_interconnect": "N/A",
        "host_memory_capacity": "8 GiB",
        "host_storage_capacity": "100 GB",
        "host_storage_type": "SSD",
        "accelerators_per_node": "0",
        "hw_notes": "Virtual machine.",
        "framework": "vLLM 0.32.0",
        "operating_system": "Debian 12",
        "other_software_stack": "Python 3.11.2, torch 2.13.0+cpu",
        **dict.fromkeys(("system_type_detail", "host_processor_frequency", "sw_notes"), ""),
    }
    others = {key: "N/A" if key.startswith("accelerator") else "not stated" for key in KEYS}
    write_json(out / "system" / "system.json", others | stated | more)


def probe(number, rate, ttft, tpot):
    limits = [
        LimitRecord(name=name, limit_ms=limit, over=0, within=1, low=0.9, high=1, p99_ms=p99)
        for name, limit, p99 in (("TTFT", 2000.0, ttft), ("TPOT", 100.0, tpot))
    ]
    passes = ttft is not None and ttft < 2000 and tpot < 100
    return ProbeRecord(
        number=number,
        rate=rate,
        planned_s=10,
        took_s=12,
        warm_up_s=1,
        queries=100,
        limits=limits,
        verdict=Verdict.PASSES if passes else Verdict.FAILS,
        ended_early=False,
    )


def published_records(folder, run_terms, model):
    scenario, mode = run_terms.scenario, run_terms.mode
    keys = ("rouge1", "rouge2", "rougeL", "tokens_per_sample")
    numbers, tokens = {
        Scenario.OFFLINE: ((41.6468, 19.5564, 26.4202, 296.5), 7287767),
        Scenario.SERVER: ((42.0442, 19.8615, 26.7971, 283.5), 6966434),
    }[scenario]
    values = dict(zip(keys, numbers, strict=True))
    samples, qps = 24576, {Scenario.OFFLINE: 10.0, Scenario.SERVER: 6.9}[scenario]
    if mode is Mode.PERFORMANCE:
        result = read_performance(folder)
        samples = result.samples
        counted = samples - (1 if scenario is Scenario.SERVER else 0)
        # The client of that time kept no count; the rules' own relation gives it back.
        tokens = round(result.figures["tokens_per_second"] / result.samples_per_second * counted)
    client = ClientRecord(
        requests=samples,
        completed=samples,
        failed=0,
        retries=0,
        prompt_tokens=0,
        completion_tokens=tokens,
        self_check=SELF_CHECK,
    )
    run = run_record(
        folder,
        scenario,
        mode,
        client,
        rehearsal=False,
        terms=run_terms,
        samples=24576,
        max_tokens=1024,
        min_tokens=1,
        target_qps=qps,
        target_qps_source=f"given by --{scenario.lower()}_target_qps",
        model=ModelRecord(name=model, path="neuralmagic/Llama-2-7b-chat-hf-FP8", source="Hugging Face", sha256=""),
        server=ServerRecord(
            endpoint="http://localhost:8000",
            model_name="neuralmagic/Llama-2-7b-chat-hf-FP8",
            max_model_len=4096,
            version="0.5.2",
            owned=False,
        ),
    )
    write_record(folder / RUN_FILE, run)
    if mode is Mode.ACCURACY:
        log = folder / "mlperf_log_accuracy.json"
        write_record(folder / ACCURACY_FILE, accuracy_record(values, run, log))
