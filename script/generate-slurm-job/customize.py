"""Writes a file for sbatch that runs the main job in an allocation of Slurm."""

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
    import os
    import sys
    from pathlib import Path

    from cmind import cli

    from cm4vllm.engine.format.meta import load_script
    from cm4vllm.engine.run.flags import check_flags, mapped_inputs
    from cm4vllm.serving.clusters.slurm_job import SlurmJobSettings, batch_text, job_words

    settings = SlurmJobSettings.of(i["env"])
    typed: dict[str, Any] = cli.parse(["run", "script", *job_words(settings)])["cm_input"]
    main_job = load_script(str(Path(__file__).resolve().parents[1] / "run-mlperf-inference-app"), "cm4vllm")
    check_flags(main_job, typed)
    program = Path(sys.executable).with_name("cm")
    text = batch_text(settings, folder=Path.cwd(), program=program, environ=os.environ)
    return text, settings, typed, mapped_inputs(main_job, typed)[1]
