"""A good submission tree of llama2-70b-99, round v6.0, made from published logs with the seeds of that round.

Its text files are written here; every mutation of `mutations.yaml` starts from it.
"""

import json
import re
import shutil

from cm4vllm.records.described_system import KEYS
from cm4vllm.rules import round_terms

ROUND = "v6.0"
SYSTEM = "4xH100_vLLM"
MODEL = "llama2-70b-99"
#: Of which published result each scenario's performance log is.
LOGS = {
    "Server": ("4xH100-SXM-80GB_vLLM_FP8-reference-cpu-pytorch-v2.3.1-default_config", "llama2-70b-99/server"),
    "Offline": ("vLLM_8xL40S-reference-cpu-pytorch-v2.3.1-default_config", "llama2-70b-99/offline"),
}
METRICS = {"Server": "Tokens per second: 1468.24", "Offline": "Tokens per second: 923.333"}
STATED = {
    "system_type": "datacenter",
    "status": "available",
    "number_of_nodes": "1",
    "accelerators_per_node": "4",
    "accelerator_model_name": "NVIDIA H100-SXM-80GB",
    "accelerator_memory_capacity": "80 GB",
    "accelerator_memory_configuration": "HBM3",
    "accelerator_host_interconnect": "PCIe Gen5 x16",
    "host_processor_core_count": "32",
    "host_processors_per_node": "2",
    "framework": "vLLM 0.32.0",
    "host_processor_caches": "L1d cache: 3 MiB (64 instances)",
    "host_memory_capacity": "2 TB",
    "host_processor_frequency": "4.1 GHz",
    "other_software_stack": "CUDA 13.0, driver 580.65",
    "host_networking": "100 GbE",
    "host_networking_topology": "one switch",
    "host_storage_capacity": "15 TB",
    "accelerator_frequency": "",
    "host_network_card_count": "1",
}
README = """# {model}, {scenario}

Required accuracy: `ROUGE1`: `44.5491`, Required accuracy for closed division `>= 43.98689`

```bash
cm run script --tags=run-mlperf,inference,_vllm --division={division} --model={model} --scenario={scenario}
```

{metric}
"""


def make(home, published):
    """Fill `home`, whose folder is the division's, and return it."""
    division = home.parent.name
    for scenario, (system, result) in LOGS.items():
        folder = home / "results" / SYSTEM / MODEL / scenario
        shutil.copytree(
            published / "results" / system / result / "performance",
            folder / "performance",
            copy_function=shutil.copyfile,
        )
        (folder / "performance" / "run_1" / "mlperf_log_accuracy.json").unlink(missing_ok=True)
        server, accuracy = LOGS["Server"]
        shutil.copytree(
            published / "results" / server / accuracy / "accuracy", folder / "accuracy", copy_function=shutil.copyfile
        )
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        for name in ("accuracy", "performance/run_1"):
            _renew(folder / name / "mlperf_log_detail.txt")
        log = (folder / "performance" / "run_1" / "mlperf_log_detail.txt").read_text()
        rate = re.findall(r'"key": "effective_target_qps", "value": ([\d.]+)', log)[0]
        (folder / "user.conf").write_text(f"*.{scenario}.target_qps = {rate}\n")
        (folder / "README.md").write_text(
            README.format(model=MODEL, scenario=scenario, division=division, metric=METRICS[scenario])
        )
        (folder / "measurements.json").write_text(
            json.dumps(
                {
                    "input_data_types": "int32",
                    "retraining": "no",
                    "weight_data_types": "fp8",
                    "starting_weights_filename": "meta-llama/Llama-2-70b-chat-hf",
                    "weight_transformations": "quantization",
                }
            )
        )
        (folder / "TEST06").mkdir()
        (folder / "TEST06" / "verify_accuracy.txt").write_text(
            "First token check pass: True\nEOS check pass: True\nSample length check pass: True\n"
        )
    (home / "systems").mkdir()
    stated = dict.fromkeys(KEYS, "as stated") | STATED | {"division": division, "submitter": home.name}
    (home / "systems" / f"{SYSTEM}.json").write_text(json.dumps(stated))
    (home / "src" / MODEL).mkdir(parents=True)
    (home / "src" / MODEL / "README.md").write_text("The program.\n")
    (home / "documentation").mkdir()
    (home / "documentation" / "calibration.md").write_text("FP8 weights.\n")
    return home


def _renew(path):
    """Set the seeds and the LoadGen of a log to those of the round."""
    seeds, text = round_terms(ROUND).seeds, path.read_text()
    stated = {"qsl": seeds.qsl, "sample_index": seeds.sample_index, "schedule": seeds.schedule}
    for name, value in stated.items():
        text = re.sub(rf'("key": "(?:effective|requested)_{name}_rng_seed", "value": )\d+', rf"\g<1>{value}", text)
    # Lists of thousands of sample indices, which no check reads, would make every test slow.
    text = "".join(line for line in text.splitlines(keepends=True) if len(line) < 4096)
    text = re.sub(r'("key": "loadgen_version", "value": )"[^"]+"', r'\g<1>"6.0.15 @ 0123456789"', text)
    last = [line for line in text.splitlines() if line.startswith(":::MLLOG")][-1]
    entry = {**json.loads(last.removeprefix(":::MLLOG ")), "key": "num_errors", "value": 0}
    path.write_text(f"{text.rstrip()}\n:::MLLOG {json.dumps(entry)}\n")
    summary = path.with_name("mlperf_log_summary.txt")
    summary.write_text(
        re.sub(
            r"(?m)^(qsl|sample_index|schedule)_rng_seed : .*$",
            lambda match: f"{match[1]}_rng_seed : {stated[match[1]]}",
            summary.read_text(),
        )
    )
