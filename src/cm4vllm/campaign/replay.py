"""The recipe `replay,mlperf`: the command of a capsule is run again, and the new results are compared with it."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.progress import say
from cm4vllm.common.secrets.command_lines import stored_command
from cm4vllm.report.comparison_texts import report_environment, report_verification
from cm4vllm.results.capsule import Capsule
from cm4vllm.results.comparing.verification import Judged
from cm4vllm.submission.capsule.capsules_at_path import capsule_at, capsule_of_results
from cm4vllm.submission.capsule.consent import Consent, question
from cm4vllm.submission.capsule.replay import ReplayInputs, compare_environment, replay_words
from cm4vllm.submission.capsule.rerun_file import CAPSULE_FILE, write_capsule

#: Flags of a replay that take the place of the capsule's.
_OWN_FLAGS = ("api_server", "dataset_path", "extra_args", "inference_src", "scenario", "submitter")


def replayed_command(
    inputs: ReplayInputs, typed: Mapping[str, Any], described: Mapping[str, Mapping[str, Any]], *, asks: bool
) -> tuple[Capsule, list[str]]:
    """Return the capsule, and the words of the command that runs it again, after `cm run script`.

    `typed` are the flags of the replay, `described` the inputs of the main job; `asks`: a user may be asked. Raises
    UsageError.
    """
    if not inputs.capsule:
        raise UsageError("no capsule was given", remedy="give its file with --capsule")
    capsule = capsule_at(Path(inputs.capsule).absolute(), inputs.of_part)
    given = {flag: str(value) for flag, value in typed.items() if flag in _OWN_FLAGS}
    given["output_dir"] = str(Path(inputs.folder).absolute())
    consent = Consent.of(inputs.accept, inputs.fill)
    help_of = {name: str(entry.get("desc", "")) for name, entry in described.items()}
    ask = question if asks and not typed.get("quiet") else None
    return capsule, replay_words(capsule, given, os.environ, consent, help_of=help_of, ask=ask)


def replay(
    inputs: ReplayInputs,
    typed: Mapping[str, Any],
    described: Mapping[str, Mapping[str, Any]],
    run: Callable[[list[str]], dict[str, Any]],
) -> tuple[list[Judged], Path]:
    """Run the command of a capsule again by `run`, and return what differs and the folder of the new results.

    Raises UsageError, and the error of the job.
    """
    capsule, words = replayed_command(inputs, typed, described, asks=True)
    say("before the run, this machine and program against the capsule's:")
    report_environment(compare_environment(capsule))
    say(f"running: {stored_command(['cm', 'run', 'script', *words])}")
    done = run(words)
    if done["return"]:
        raise CmError.again(done["return"], done["error"])
    out = Path(done["new_env"]["CM_MLPERF_RESULTS_DIR"])
    again = capsule_of_results(out)
    write_capsule(out / CAPSULE_FILE, again)
    if typed.get("scenario"):
        measured = {result.scenario for result in again.results}
        capsule = replace(capsule, results=[result for result in capsule.results if result.scenario in measured])
    return report_verification([(Path(inputs.capsule), capsule), (out, again)], inputs.accuracy), out
