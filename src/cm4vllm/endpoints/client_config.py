"""The configuration of the reference client for one run, as it reads it (config.yaml of mlcommons/endpoints).

The client writes it into the run's folder, and it is submitted as it is: all paths in it are relative to the folder in
which the client works, and a key of the server stands in it as the name of a variable.
"""

from typing import Any

from cm4vllm.common.records import Record
from cm4vllm.rules import ClientDataset, SeedSet

#: The folder with the model's tokenizer, below the one that the client works in.
TOKENIZER = "tokenizer"


class ClientRun(Record, frozen=True, kw_only=True):
    """One run of the client: `samples` are issued with `concurrency` in flight, None for all at once (Offline).

    `api` is the client's name of the server's interface, `parameters` are further ones of each request. The datasets in
    `scored`, `accuracy_samples` in all, are issued and scored directly after. `key_variable` names the variable that
    holds the server's key, empty where it asks for none. `workers` are processes that send requests, None for as many
    as the client chooses. `min_duration_ms` is what the client is given; with `samples` it does not lengthen the run.
    With `steady_state` the client computes the steady state of the run, which not every one can.
    """

    folder: str
    endpoints: tuple[str, ...]
    api: str
    model: str
    dataset: ClientDataset
    samples: int
    concurrency: int | None
    seeds: SeedSet
    max_tokens: int
    temperature: float
    top_p: float
    parameters: dict[str, int | bool] = {}
    scored: tuple[ClientDataset, ...] = ()
    accuracy_samples: int = 0
    key_variable: str = ""
    workers: int | None = None
    steady_state: bool = False
    min_duration_ms: int = 0

    @property
    def accuracy(self) -> bool:
        """Return True for a run with an accuracy run."""
        return bool(self.scored)


def client_document(run: ClientRun) -> dict[str, Any]:
    """Return the configuration as the client reads it from YAML.

    The model's seed of the set is no parameter of requests: it is greater than what vLLM takes (2^63 - 1).
    """
    pattern: dict[str, Any] = {"type": "concurrency", "target_concurrency": run.concurrency}
    offline = run.concurrency is None
    return {
        "name": run.folder,
        "version": "1.0",
        "type": "offline" if offline else "online",
        "model_params": {
            "name": run.model,
            "temperature": run.temperature,
            "top_p": run.top_p,
            "max_new_tokens": run.max_tokens,
            "streaming": "on",
            "tokenizer_name": TOKENIZER,
            **run.parameters,
        },
        "datasets": [_dataset_values(run.dataset, "performance"), *map(_accuracy, run.scored)],
        "settings": {
            "runtime": {
                "min_duration_ms": run.min_duration_ms,
                "n_samples_to_issue": run.samples,
                "scheduler_random_seed": run.seeds.scheduler,
                "dataloader_random_seed": run.seeds.sample_index,
            },
            "load_pattern": {"type": "max_throughput"} if offline else pattern,
            **({"client": {"num_workers": run.workers}} if run.workers else {}),
            **({"steady_state": {"enabled": True}} if run.steady_state else {}),
        },
        "endpoint_config": {
            "endpoints": list(run.endpoints),
            "api_type": run.api,
            **({"api_key": f"${{{run.key_variable}}}"} if run.key_variable else {}),
        },
        "report_dir": run.folder,
    }


def _accuracy(dataset: ClientDataset) -> dict[str, Any]:
    scoring = {
        "eval_method": dataset.scorer,
        "ground_truth": dataset.ground_truth,
        "extractor": dataset.extractor,
        "num_repeats": dataset.repeats,
    }
    return {**_dataset_values(dataset, "accuracy"), "accuracy_config": _given_values(scoring)}


def _dataset_values(dataset: ClientDataset, kind: str) -> dict[str, Any]:
    return _given_values({"name": dataset.name, "type": kind, "path": dataset.path, "parser": dataset.parser})


def _given_values(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}
