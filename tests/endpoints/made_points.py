"""Run folders of a made-up curve that keeps all rules, for tests that change one thing in them."""

import json
import shutil
from pathlib import Path

import msgspec
import yaml

from cm4vllm.common.files import write_json, write_text
from cm4vllm.common.records import write_record
from cm4vllm.endpoints.client_config import ClientRun
from cm4vllm.endpoints.disclosure import point_document, system_document
from cm4vllm.endpoints.records import PointRecord
from cm4vllm.endpoints.steady_state import SteadyState, Window
from cm4vllm.records.server import ServerRecord
from cm4vllm.results.endpoints.curves import POINT_FILE
from cm4vllm.rules import ClientDataset, endpoints_rules

BENCHMARK = endpoints_rules().benchmark("llama3_1-8b")
CURVE = endpoints_rules().regions(c_min=8, c_max=256)
POINTS = (8, 11, 14, 32, 54, 128, 256)
WITH_ACCURACY = (8, 14, 32, 256)
SEEDS = endpoints_rules().seed_sets[0]
PASSES = 6
#: The stand-in's benchmark, as a rehearsal has it: a name and a dataset of its own, and a pass of 64 samples.
STAND_IN = msgspec.structs.replace(
    BENCHMARK, name="cm4vllm-tiny", dataset="harbour-log", samples=64, accuracy_samples=64
)
COMMIT = "ea33275"

DESCRIPTION = {
    "submitter": "Example",
    "system_name": "Example server",
    "status": "available",
    "number_of_nodes": "1",
    "host_processor_model_name": "AMD EPYC 9654",
    "host_processors_per_node": "2",
    "host_processor_core_count": "96",
    "host_memory_capacity": "1.5 TiB",
    "host_memory_configuration": "24x 64 GB DDR5-4800",
    "host_network_card_count": "2",
    "cooling": "air",
    "operating_system": "Debian 12",
    "other_software_stack": "PyTorch 2.13.0",
    "accelerators_per_node": "8",
    "accelerator_model_name": "NVIDIA B200",
    "accelerator_memory_capacity": "180 GiB",
    "accelerator_memory_configuration": "HBM3e",
    "accelerator_interconnect": "NVLink",
    "accelerator_host_interconnect": "PCIe Gen5 x16",
}
STATED = {
    "shortened_system_name": "8xB200",
    "system_size": "1 node",
    "availability_url": "https://example.org/server",
    "node": {"driver": "580.65.06", "filesystem": "ext4"},
}
POWER = {
    "system_desc_id": "Example server",
    "cooling": "air",
    "node_sets": [
        {
            "node_set_id": 1,
            "system_node_ensemble_id": 1,
            "nodes_provisioned": 1,
            "power_method": "component_sum",
            "components": {
                "cpu": {
                    "model": "AMD EPYC 9654",
                    "count_per_node": 2,
                    "tdp_per_unit": {
                        "value_w": 360.0,
                        "source_type": "vendor_spec",
                        "source": "https://example.org/cpu",
                    },
                },
                "accelerator": {
                    "model": "NVIDIA B200",
                    "count_per_node": 8,
                    "tdp_per_unit": {
                        "value_w": 1000.0,
                        "source_type": "vendor_spec",
                        "source": "https://example.org/gpu",
                    },
                },
                "scale_up_network": {"method": "none"},
            },
        }
    ],
    "scale_out": {"present": False},
}


#: What the submitter states of each point.
MORE = {
    "nodes_used": [{"system_node_ensemble_id": 1, "nodes": 1}],
    "sparsity": {"method": "thresholding", "source": "https://example.org", "threshold": 0.1, "calibration": "none"},
}


def client_run(**fields):
    """Return a run of the client with made-up values."""
    made = {
        "folder": "point-1",
        "endpoints": ("http://127.0.0.1:1",),
        "api": "openai",
        "model": "m",
        "dataset": ClientDataset(name="d"),
        "samples": 320,
        "concurrency": 4,
        "seeds": SEEDS,
        **{"max_tokens": 1, "temperature": 0, "top_p": 1},
    }
    return ClientRun(**{**made, **fields})


def point_record(terms, *, samples, curve=CURVE, benchmark=BENCHMARK, scored=(), **fields):
    """Return the record of a point with made-up figures."""
    run = client_run(samples=samples, concurrency=terms.concurrency, scored=scored)
    server = ServerRecord(endpoint="http://127.0.0.1:1", model_name="m", max_model_len=1, version="", owned=False)
    made = {
        "offline": "none",
        "model": "m",
        "model_sha256": "",
        "dataset_sha256": "",
        "dataset_rows": 0,
        "files": {},
        "client_commit": "",
        "identity": "",
        "started_at": "",
        "wall_s": 1.0,
        "duration_s": 1.0,
        "samples_per_second": 1.0,
    }
    return PointRecord(benchmark=benchmark, terms=terms, curve=curve, run=run, server=server, **{**made, **fields})


def write_points(folder, benchmark=BENCHMARK):
    """Write the run folders of the curve into `folder` and return them by concurrency.

    A run of the stand-in lasts seconds, and its answers are poor.
    """
    return {
        concurrency: _write_point(folder / f"point-{concurrency}", concurrency, benchmark) for concurrency in POINTS
    }


def measured_points(folder, concurrencies):
    """Write run folders of the curve with their records, as after a job, and return their folder."""
    for concurrency in concurrencies:
        path = _write_point(folder / f"point-{concurrency}", concurrency, BENCHMARK)
        record = point_record(
            endpoints_rules().point_terms(BENCHMARK, concurrency, CURVE), samples=1, identity=f"i{concurrency}"
        )
        write_record(path / POINT_FILE, record)
    return folder


def renamed(bundle, target, name):
    """Copy the folder of a bundle to `target` with another name of the model, and return the copy."""
    copy = Path(shutil.copytree(bundle, target))
    for point in sorted(copy.rglob("point.yaml")):
        change_yaml(point, lambda content: content.update(model_name=name))
    for model in {point.parents[1] for point in copy.rglob("point.yaml")}:
        model.rename(model.with_name(name))
    return copy


def change_yaml(path, change):
    """Change a YAML file in place."""
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def change_json(path, change):
    """Change a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _write_point(folder, concurrency, benchmark):
    stand_in = benchmark is STAND_IN
    seconds = 60 if stand_in else 1800
    terms = endpoints_rules().point_terms(benchmark, concurrency, CURVE)
    samples = PASSES * benchmark.samples
    accuracy = concurrency in WITH_ACCURACY
    window = Window(
        super_pass_start=1,
        super_pass_end=PASSES - 1,
        super_pass_size=benchmark.samples,
        n_samples=(PASSES - 1) * benchmark.samples,
        duration_s=seconds * 5 / 6,
    )
    record = point_record(
        terms,
        samples=samples,
        benchmark=benchmark,
        scored=(benchmark.performance,) if accuracy else (),
        dataset_sha256="ab" * 32,
        in_flight=concurrency - 0.25,
        offline="elected" if concurrency == CURVE.c_max else "none",
        steady_state=SteadyState(
            status="insufficient_duration" if stand_in else "windowable",
            verdict="STEADY STATE",
            window=window,
            state={"tpot_p50": "Plateau", "tpot_p90": "Plateau"},
        ),
    )
    stated = {
        "division": "Standardized",
        "target_cohort": "2026-11-C1",
        "model_precision": "FP8",
        "link_to_model": "https://example.org/model",
        "dataset_name": "CNN/DailyMail",
        "dataset_link": "https://example.org/dataset",
    }
    write_text(
        folder / "point.yaml",
        yaml.safe_dump(point_document(record, CURVE, stated, "none", steps=["weights loaded"], more=MORE)),
    )
    write_json(
        folder / "system_desc.json",
        system_document(
            DESCRIPTION,
            STATED,
            curve=CURVE,
            division="Standardized",
            framework="vLLM 0.32.0",
            parallel={"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 8, "expert_parallel": 1},
            detected={},
        ),
    )
    write_json(folder / "system_power.json", POWER)
    write_text(folder / "config.yaml", yaml.safe_dump(_config(benchmark, samples, concurrency, accuracy)))
    write_json(folder / "performance" / "result_summary.json", _summary(samples, concurrency, seconds))
    if accuracy:
        score = _score(benchmark, 0.5 if stand_in else 1.005)
        write_json(folder / "accuracy" / "accuracy_results.json", {"accuracy_scores": [score]})
    return folder


def _config(benchmark, samples, concurrency, accuracy):
    datasets = [{"name": benchmark.performance.name, "type": "performance"}]
    return {
        "model_params": {
            "name": "meta-llama/Llama-3.1-8B-Instruct",
            "temperature": benchmark.temperature,
            "top_p": benchmark.top_p,
            "max_new_tokens": benchmark.max_tokens,
            "streaming": "on",
        },
        "datasets": datasets + [{"name": benchmark.performance.name, "type": "accuracy"}] * accuracy,
        "settings": {
            "runtime": {
                "n_samples_to_issue": samples,
                "scheduler_random_seed": SEEDS.scheduler,
                "dataloader_random_seed": SEEDS.sample_index,
            },
            "load_pattern": {"type": "concurrency", "target_concurrency": concurrency},
        },
    }


def _summary(samples, concurrency, seconds):
    """Return a summary of a run that kept nearly all of its concurrency in flight, with 100 tokens an answer."""
    latency, first = 0.98e9 * concurrency * seconds / samples, 2.5e7 + 1e3 * concurrency
    return {
        "version": "0.1.0",
        "git_sha": COMMIT,
        "n_samples_issued": samples,
        "n_samples_completed": samples,
        "n_samples_failed": 0,
        "duration_ns": seconds * 10**9,
        "state": "complete",
        "complete": True,
        "qps": samples / seconds,
        "tps": 100 * samples / seconds,
        "ttft": _distribution(samples, first),
        "tpot": _distribution(samples, (latency - first) / 99),
        "latency": _distribution(samples, latency),
        "output_sequence_lengths": _distribution(samples, 100),
        "input_sequence_lengths": _distribution(samples, 800),
    }


def _distribution(samples, mean):
    """Return a distribution as the client has it: nine of ten values are 0.98 of the mean, the others 1.18."""
    few = samples // 10
    low, high = 0.98 * mean, (samples * mean - (samples - few) * 0.98 * mean) / few
    deviation = (((samples - few) * (mean - low) ** 2 + few * (high - mean) ** 2) / (samples - 1)) ** 0.5
    return {
        "total": samples * mean,
        "min": low,
        "max": high,
        "median": low,
        "avg": mean,
        "std_dev": deviation,
        "percentiles": {"99.0": high, "95.0": high, "90.0": low, "50.0": low, "10.0": low},
        "histogram": {
            "buckets": [[low, 1.05 * mean], [1.05 * mean, 1.1 * mean], [1.1 * mean, high]],
            "counts": [samples - few, 0, few],
        },
    }


def _score(benchmark, part):
    """Return an accuracy entry whose scores are this part of the benchmark's lower targets."""
    score = {
        target.label: f"{(target.lower or 0) * part if target.upper is None else target.reference:.4f}"
        for target in benchmark.targets
    }
    return {
        "dataset_name": benchmark.performance.name,
        "dataset_type": "accuracy",
        "score": score,
        "unit_samples": benchmark.accuracy_samples,
        "num_repeats": 1,
        "complete": True,
        "response_counts": {
            "issued": benchmark.accuracy_samples,
            "scored": benchmark.accuracy_samples,
            "empty": 0,
            "missing": 0,
        },
    }
