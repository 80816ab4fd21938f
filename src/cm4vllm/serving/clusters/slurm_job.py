"""The recipe `generate,slurm-job`: a file for sbatch that runs the whole main job in an allocation."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import typed_path, writable_folder
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.secrets.command_lines import options_in, shell_line
from cm4vllm.common.secrets.redaction import redacted_words
from cm4vllm.common.settings import Key, Settings
from cm4vllm.serving.clusters.launchers import node_count

#: The tags of the main job, where `--job` has none.
MAIN_JOB = "run-mlperf,inference,_vllm"
#: Slurm ends a job at its time limit. So long before, in s, `cm` gets SIGTERM and ends in order.
_WARNING_S = 60
#: The nodes and the launcher of a main job: the names of their flags and of their environment keys.
_NODES = frozenset({"nodes", "launcher", "CM_VLLM_SERVER_NODES", "CM_VLLM_SERVER_LAUNCHER"})
#: The sets of options of sbatch of which it takes one at most (sbatch(1): --mem, --exclusive and --oversubscribe,
#: --gpus-per-node and --gpus-per-task beside --gpus), by which a given option replaces ours; each as long.
_EXCLUSIVE = (
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"exclusive", "oversubscribe", "share"}),
    frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres"}),
)
#: The long names of short options.
_LONG = {
    "-J": "job-name",
    "-N": "nodes",
    "-n": "ntasks",
    "-w": "nodelist",
    "-F": "nodefile",
    "-t": "time",
    "-p": "partition",
    "-A": "account",
    "-o": "output",
    "-G": "gpus",
    "-s": "oversubscribe",
}
#: The short options of sbatch that take no value.
_WITHOUT_VALUE = "HhOQsuVvW"
#: What the batch file and the launcher rest on: the nodes are those of --nodes, with one task on each.
_OURS = frozenset(
    {*("nodes", "nodelist", "nodefile", "signal"), *("ntasks", "ntasks-per-node", "tasks-per-node", "ntasks-per-gpu")}
)
_KNOWN = _OURS.union(_LONG.values(), *_EXCLUSIVE)
#: Variables of the environment that the job needs as they are here.
_KEPT = ("CM_REPOS",)


class SlurmJobSettings(Settings, frozen=True, kw_only=True):
    """The batch file: `job` has the flags of the main job as a shell reads them, `options` further ones of sbatch."""

    job: Annotated[str, Key("CM_SLURM_JOB")] = ""
    nodes: input_types.Nodes = ""
    file: Annotated[str, Key("CM_SLURM_JOB_FILE")] = "cm4vllm.sbatch"
    name: Annotated[str, Key("CM_SLURM_JOB_NAME")] = "cm4vllm"
    time: Annotated[str, Key("CM_SLURM_TIME")] = ""
    partition: Annotated[str, Key("CM_SLURM_PARTITION")] = ""
    account: Annotated[str, Key("CM_SLURM_ACCOUNT")] = ""
    gpus: Annotated[int | None, Key("CM_SLURM_GPUS")] = None
    options: Annotated[str, Key("CM_SLURM_OPTIONS")] = ""


def job_words(settings: SlurmJobSettings) -> list[str]:
    """Return the words of the main job, after `cm run script`. Raises UsageError for a text that is not one."""
    words = _split(settings.job, "--job")
    if alone := [word for word in words if not word.startswith("--") or word == "--"]:
        raise UsageError(
            f"--job has {alone[0]!r}, which is not a flag",
            remedy="put all flags of the main job into --job, each as --NAME=VALUE",
        )
    if given := [word for word in words if _innermost_key(word) in _NODES]:
        raise UsageError(
            f"{given[0]} is given in --job",
            cause="the nodes of the job are those of its allocation, which srun starts the server on",
            remedy="give --nodes beside --job",
        )
    if not any(word.startswith("--tags=") for word in words):
        words.insert(0, f"--tags={MAIN_JOB}")
    count = _count(settings)
    return [*words, *([f"--nodes={settings.nodes if _names(settings) else count}"] if count > 1 else []), "--quiet"]


def _innermost_key(word: str) -> str:
    """Return the last key of a flag of CM: a comma ends the name of a list, a dash that of a switch that is off."""
    return word.partition("=")[0].rpartition(".")[2].strip("-+, ").replace("-", "_")


def batch_text(
    settings: SlurmJobSettings,
    *,
    folder: Path | None = None,
    program: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Return the file: it runs `program`, a `cm`, in `folder`; without them that of this Python in the present folder.

    Raises UsageError for options that cannot be written.
    """
    program = program or Path(sys.executable).with_name("cm")
    kept = [f"export {name}={shlex.quote(environ[name])}" for name in _KEPT if environ.get(name)]
    command = shell_line(redacted_words(["cm", "run", "script", *job_words(settings)]))
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in _options(settings)),
            "",
            "# Submitted again after it has ended early, the job goes on: finished steps are kept.",
            f"cd {shlex.quote(str(folder or Path.cwd()))} || exit",
            *kept,
            f'export PATH={shlex.quote(str(program.parent))}:"$PATH"',
            f"exec {command}",
            "",
        ]
    )


def write_batch_file(settings: SlurmJobSettings, text: str) -> Path:
    """Write the file and return its path."""
    path = typed_path(settings.file).absolute()
    writable_folder(path.parent)
    write_noted(path, text)
    return path


def _options(settings: SlurmJobSettings) -> list[str]:
    """Return the options of sbatch. The nodes are the job's alone: others on them would change what is measured.

    `--exclusive` takes all processors of a node, but of its memory only what the partition gives by default.
    """
    own = {
        "job-name": settings.name,
        "nodes": str(_count(settings)),
        "nodelist": ",".join(_names(settings)),
        "ntasks-per-node": "1",
        "gpus-per-node": "" if settings.gpus is None else str(settings.gpus),
        "time": settings.time,
        "partition": settings.partition,
        "account": settings.account,
        "output": f"{settings.name}-%j.log",
        "signal": f"B:TERM@{_WARNING_S}",
    }
    further = _further(settings.options)
    given = {option for word in further for option in _options_of(word)}
    given |= {name for group in _EXCLUSIVE if group & given for name in group}
    words = [f"--{option}={value}" for option, value in own.items() if value and option not in given]
    if spaced := next(filter(re.compile(r"\s").search, words), ""):
        raise UsageError(f"{spaced!r} cannot be an option of sbatch", cause="it has a space in it")
    words += [word for word in ("--exclusive", "--mem=0") if given.isdisjoint(_options_of(word))]
    return [*words, *map(shlex.quote, further)]


def _options_of(word: str) -> list[str]:
    """Return the long names of the options of sbatch that a word gives; of others the short ones."""
    return [_LONG.get(option, option.removeprefix("--")) for option in options_in(word, _WITHOUT_VALUE)]


def _further(text: str) -> Sequence[str]:
    words = _split(text, "--slurm_options")
    if wrong := [word for word in words if not word.startswith("-") or "\n" in word]:
        raise UsageError(
            f"{wrong[0]!r} in --slurm_options is not an option of sbatch",
            remedy="put further options of sbatch into --slurm_options, each as --NAME=VALUE",
        )
    for option in (option for word in words for option in _options_of(word) if option not in _KNOWN):
        if begun := sorted(name for name in _KNOWN if name.startswith(option)):
            raise UsageError(
                f"--{option} in --slurm_options is the beginning of an option's name",
                cause="whether it takes the place of an option of the batch file is known of whole names only",
                remedy=f"write the name as a whole: {' or '.join(f'--{name}' for name in begun)}",
            )
    if ours := [word for word in words if not _OURS.isdisjoint(_options_of(word))]:
        raise UsageError(
            f"{ours[0]!r} cannot be given in --slurm_options",
            cause="the batch file and the servers on the nodes rest on cm4vllm's own value",
            remedy="leave it out; --nodes chooses the nodes",
        )
    return words


def _names(settings: SlurmJobSettings) -> list[str]:
    names = [name.strip() for name in settings.nodes.split(",")]
    return [] if re.fullmatch(r"([+-]?\d+)?", settings.nodes.strip()) else names


def _count(settings: SlurmJobSettings) -> int:
    if not all(re.fullmatch(r"[A-Za-z0-9_.-]+", name) for name in _names(settings)):
        raise UsageError(f"--nodes={settings.nodes} is not usable", remedy="give a number, or NODE,NODE")
    return node_count(settings.nodes)


def _split(text: str, flag: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag} cannot be read", cause=str(error), remedy="quote it as in a shell") from error
