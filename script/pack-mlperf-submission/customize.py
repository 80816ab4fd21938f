"""Packs a submission tree into a tar.gz whose bytes depend on the tree alone."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say
    from cm4vllm.submission.archive import pack, private_ids
    from cm4vllm.submission.checker.source import open_source

    env = i["env"]
    tree = Path(env["CM_MLPERF_INFERENCE_SUBMISSION_DIR"]).absolute()
    archive = Path(env.get("CM_MLPERF_SUBMISSION_ARCHIVE") or f"{tree}.tar.gz").absolute()
    ids = {}
    if env.get("CM_MLPERF_SUBMISSION_PRIVATE_IDS", "") == "yes":
        ids = private_ids(tree, open_source(Path(env["CM_MLPERF_INFERENCE_SOURCE"])))
    recipients = tuple(
        recipient.strip() for recipient in env.get("CM_MLPERF_SUBMISSION_RECIPIENT", "").split(",") if recipient.strip()
    )
    packed = pack(
        tree,
        archive,
        program=env.get("CM_MLPERF_SUBMISSION_ENCRYPT", ""),
        recipients=recipients,
        ids=ids,
        keep_plain=env.get("CM_MLPERF_SUBMISSION_KEEP_PLAIN", "") == "yes",
    )
    say(f"archive: {packed.archive or 'written encrypted only'}\nsha256: {packed.sha256}")
    for system, private_id in ids.items():
        say(f"private id of {system}: {private_id}")
    if packed.encrypted:
        say(f"encrypted: {packed.encrypted}\nsha256: {packed.encrypted_sha256}")
    env["CM_MLPERF_SUBMISSION_ARCHIVE"] = str(packed.archive or "")
    env["CM_MLPERF_SUBMISSION_ARCHIVE_SHA256"] = packed.sha256
    env["CM_MLPERF_SUBMISSION_ENCRYPTED"] = str(packed.encrypted or "")
    return {"return": 0}
