"""Writes a file for sbatch that runs the main job in an allocation of Slurm."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say_text

    text, settings, typed, keys = _file(i)
    say_text(text)
    # The nodes are not allocated yet: the job is planned as on processes of this machine.
    given = {**keys, "CM_VLLM_SERVER_LAUNCHER": "local"} if settings.nodes else keys
    return {"return": 0, "steps": [{"name": "job", "tags": typed["tags"], "env": given}]}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say
    from cm4vllm.serving.clusters.slurm_job import write_batch_file

    text, settings, _, _ = _file(i)
    path = write_batch_file(settings, text)
    say(f"sbatch {path}")
    i["env"]["CM_SLURM_JOB_FILE"] = str(path)
    return {"return": 0}


def _file(i: dict[str, Any]) -> tuple[str, Any, dict[str, Any], dict[str, Any]]:
    """Return the file's text, the settings, and the main job's flags, as typed and as keys of its environment."""
    from cm4vllm.engine.run.flags import check_flags, parse_command
    from cm4vllm.serving.clusters.slurm_job import SlurmJobSettings, batch_text, job_words

    settings = SlurmJobSettings.of(i["env"])
    main_job = str(Path(__file__).resolve().parents[1] / "run-mlperf-inference-app")
    script, typed, keys = parse_command(main_job, job_words(settings))
    check_flags(script, typed)
    return batch_text(settings), settings, typed, keys
