"""Provides a dataset file and its record."""

from pathlib import Path


def preprocess(i):
    from cm4vllm.assets.datasets import DATASET_FILE, DatasetSettings, provide
    from cm4vllm.common.settings import read_settings

    env = i["env"]
    record = provide(read_settings(DatasetSettings, env), Path.cwd())
    env["CM_DATASET_PATH"] = record.path
    env["CM_DATASET_RECORD"] = str(Path.cwd() / DATASET_FILE)
    return {"return": 0}
