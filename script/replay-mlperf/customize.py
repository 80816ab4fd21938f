"""Runs the command of a capsule again, and compares the new results with the capsule's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

_OWN_FLAGS = ("api_server", "dataset_path", "extra_args", "inference_src", "scenario", "submitter")


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.engine.run.flags import mapped_inputs

    _, words = _command(i, asks=False)
    typed = _typed(words)
    return {"return": 0, "steps": [{"name": "job", "tags": typed["tags"], "env": mapped_inputs(_main_job(), typed)[1]}]}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    from cm4vllm.common.errors import CmError
    from cm4vllm.common.progress import say
    from cm4vllm.common.secrets.command_lines import stored_command
    from cm4vllm.report.comparison_texts import report_environment, report_verification
    from cm4vllm.results.comparing.verification import refuse_differences
    from cm4vllm.submission.capsule.capsules_at_path import capsule_of_results
    from cm4vllm.submission.capsule.replay import ReplayInputs, compare_environment
    from cm4vllm.submission.capsule.rerun_file import CAPSULE_FILE, write_capsule

    inputs = ReplayInputs.of(i["env"])
    capsule, words = _command(i, asks=True)
    say("before the run, this machine and program against the capsule's:")
    report_environment(compare_environment(capsule))
    say(f"running: {stored_command(['cm', 'run', 'script', *words])}")
    done = i["automation"].run({**_typed(words), "quiet": True, "out": ""})
    if done["return"]:
        raise CmError.again(done["return"], done["error"])
    out = Path(done["new_env"]["CM_MLPERF_RESULTS_DIR"])
    again = capsule_of_results(out)
    write_capsule(out / CAPSULE_FILE, again)
    if i["input"].get("scenario"):
        measured = {result.scenario for result in again.results}
        results = [result for result in capsule.results if result.scenario in measured]
        capsule = msgspec.structs.replace(capsule, results=results)
    rows = report_verification([(Path(inputs.capsule), capsule), (out, again)], inputs.accuracy)
    i["state"]["compared"] = msgspec.to_builtins(rows)
    i["env"].update(CM_MLPERF_RESULTS_DIR=str(out), CM_MLPERF_CAPSULE=str(out / CAPSULE_FILE))
    refuse_differences(rows)
    return {"return": 0}


def _command(i: dict[str, Any], *, asks: bool) -> tuple[Any, list[str]]:
    """Return the capsule, and the words of the command that runs it again; `asks`: a user may be asked."""
    import os

    from cm4vllm.common.errors import UsageError
    from cm4vllm.submission.capsule.capsules_at_path import capsule_at
    from cm4vllm.submission.capsule.consent import Consent, question
    from cm4vllm.submission.capsule.replay import ReplayInputs, replay_words

    inputs = ReplayInputs.of(i["env"])
    if not inputs.capsule:
        raise UsageError("no capsule was given", remedy="give its file with --capsule")
    capsule = capsule_at(Path(inputs.capsule).absolute(), inputs.of_part)
    given = {flag: str(value) for flag, value in i["input"].items() if flag in _OWN_FLAGS}
    consent = Consent.of(inputs.accept, inputs.fill)
    help_of = {name: str(described.get("desc", "")) for name, described in _main_job().input_description.items()}
    ask: Callable[..., bool] | None = question if asks and not i["input"].get("quiet") else None
    given["output_dir"] = str(Path(inputs.folder).absolute())
    return capsule, replay_words(capsule, given, os.environ, consent, help_of=help_of, ask=ask)


def _main_job() -> Any:
    from cm4vllm.engine.format.meta import load_script

    return load_script(str(Path(__file__).resolve().parents[1] / "run-mlperf-inference-app"), "cm4vllm")


def _typed(words: list[str]) -> dict[str, Any]:
    """Return the words as the dictionary that cm makes of a command line."""
    from cmind import cli

    typed: dict[str, Any] = cli.parse(["run", "script", *words])["cm_input"]
    return typed
