"""Checks of the job itself after a step: the server and the files of the samples must be the expected ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cm4vllm.assets.media_files import require_media
from cm4vllm.assets.published_formats import rows_of
from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.assets.stand_ins import stand_in_named
from cm4vllm.campaign.steps import Check
from cm4vllm.common.errors import UsageError
from cm4vllm.common.records import read_record
from cm4vllm.rules import Division
from cm4vllm.serving.records import ServerRecord
from cm4vllm.serving.server_probe import check_vocabulary
from cm4vllm.serving.text_servers import check_tokenizer, require_division

__all__ = ["CHECKS"]


def _require_stand_in(env: Mapping[str, str]) -> None:
    """Raise UsageError unless a server for which no model was named serves a stand-in."""
    server = read_record(Path(env["CM_VLLM_SERVER_RECORD"]), ServerRecord)
    if not stand_in_named(server.model_name):
        raise UsageError(
            f"the server at {server.endpoint} serves {server.model_name}, and no model was named",
            cause="its files describe the result, and its dataset is the benchmark's: the stand-in's files and "
            "dataset would be used instead",
            remedy=f"name it: --vllm_model_name={server.model_name}, if that is its hub id or its name in the "
            "catalogue;\notherwise with its files: --tags=run-mlperf,inference,_path.FOLDER; _tiny says that it is the "
            "stand-in",
        )


def _require_vocabulary(env: Mapping[str, str]) -> None:
    server = read_record(Path(env["CM_VLLM_SERVER_RECORD"]), ServerRecord)
    model = read_record(Path(env["CM_ML_MODEL_RECORD"]), ModelRecord)
    require_division(server, Division.parse(env["CM_MLPERF_SUBMISSION_DIVISION"]))
    check_vocabulary(server, model)
    check_tokenizer(server, model)


def _require_media(env: Mapping[str, str]) -> None:
    dataset = read_record(Path(env["CM_DATASET_RECORD"]), DatasetRecord)
    require_media(Path(dataset.media_folder), rows_of(Path(dataset.path)))


#: The checks after a step; each gets the keys that all steps so far have exported, and raises CmError.
CHECKS: Mapping[Check, Callable[[Mapping[str, str]], None]] = {
    Check.NAMED_MODEL: _require_stand_in,
    Check.VOCABULARY: _require_vocabulary,
    Check.MEDIA: _require_media,
}
