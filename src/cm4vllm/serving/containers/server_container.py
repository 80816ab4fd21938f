"""The container of a server: what it gets of this machine, its command, and its end.

The server has the address and the paths that it has without a container: the network is this machine's, and the model
is mounted, read-only, where it is. Each container has a label with its supervisor, a name of its own, and as its first
process in_container/first_process.py, which ends it with the supervisor. One that an engine has not removed is found
by its label.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.assets.model_links import model_links
from cm4vllm.common.errors import UsageError
from cm4vllm.common.programs.containers import Mount, ask_engine, engines, run_words
from cm4vllm.common.progress import warn
from cm4vllm.common.secrets.command_lines import given_words, options_in, refuse_secrets
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.hardware.gpus.gpu import VISIBLE
from cm4vllm.records.published_server import described_container
from cm4vllm.records.server import ContainerRecord
from cm4vllm.serving.carried_variables import carried_variables
from cm4vllm.serving.options.arguments import ServerSettings, hub_folder, secret_env, server_env
from cm4vllm.serving.supervision.own_supervisors import supervisor_spec
from cm4vllm.serving.supervisor import WATCHED_PIPE

#: The label of every container: the namespace of process IDs and in it the supervisor.
_LABEL = "cm4vllm.supervisor"
_PROGRAM, _WATCHED = "/cm4vllm", "/cm4vllm-watched"
#: Options of an engine on which the server's address and its end rest; those of a pod are podman's.
_OURS = frozenset(
    {
        *("--detach", "-d", "--name", "--entrypoint", "--rm", "--restart", "--pid", "--pod", "--pod-id-file"),
        *("--network", "--net", "--publish", "-p", "--publish-all", "-P"),
    }
)
#: The short options that take no value (docker-run(1), podman-run(1)).
_WITHOUT_VALUE = "diPqt"


def container_options(text: str) -> list[str]:
    """Return the words of --container_args. Raises UsageError for a secret, and for what cannot be changed."""
    words = given_words("--container_args", text)
    refuse_secrets(
        "--container_args",
        words,
        cause="every user of the machine can read the command line of the container",
        remedy='set it as a variable of the environment, and give its name alone: --container_args="--env NAME"',
    )
    for word in words:
        named = [name for name in options_in(word, _WITHOUT_VALUE) if name in _OURS]
        if name := named[0] if named else _LABEL if _LABEL in word else "":
            raise UsageError(
                f"{name} cannot be given in --container_args",
                cause="the address and the end of the server rest on cm4vllm's own value",
                remedy="leave it out; --host and --port choose the address",
            )
    return words


def server_container(image: ContainerRecord, settings: ServerSettings) -> ContainerRecord:
    """Return the container of a server of an image: with the folders and variables that it gets of this machine."""
    environment = {**carried_variables(os.environ), **secret_env(settings), **server_env(settings)}
    passed = {*environment, *(set(VISIBLE) & set(os.environ))} - {"PYTHONPATH", "VLLM_RPC_BASE_PATH"}
    return msgspec.structs.replace(image, mounts=_mounts(settings), passed=sorted(passed))


def supervised_words(record: ContainerRecord, argv: Sequence[str]) -> list[str]:
    """Return the command for a supervisor, which fills in the braces."""
    described = described_container(
        record, (argv[0], f"{_PROGRAM}/first_process.py", f"{_WATCHED}/{WATCHED_PIPE}", *argv)
    )
    own = (Mount(str(Path(__file__).parents[1] / "in_container"), _PROGRAM), Mount("{watched}", _WATCHED))
    container = replace(
        described,
        name="{container}",
        label=f"{_LABEL}={_pid_namespace()}.{{supervisor}}",
        local_image=True,
        mounts=(*described.mounts, *own),
    )
    return run_words(engines()[record.engine], container)


def removal_words(record: ContainerRecord) -> list[str]:
    """Return the command that removes the container, for a supervisor; none where the engine has no such command."""
    engine = engines()[record.engine]
    return [engine.name, *engine.removal, "{container}"] if engine.removal else []


def remove_leftovers(engine_name: str) -> list[str]:
    """Remove the containers whose supervisor is gone, and return their names.

    They have ended with the supervisor; an engine that was killed too has not removed them.
    """
    engine = engines()[engine_name]
    if not (engine.listing and engine.details and engine.removal):
        return []
    listed = ask_engine(engine, *(word.format(_LABEL) for word in engine.listing))
    names = listed.output.split() if listed.ok else []
    described = ask_engine(engine, *engine.details, *names) if names else None
    try:
        containers: list[dict[str, Any]] = json.loads(described.output) if described and described.ok else []
    except ValueError:
        return []
    left = [str(container.get("Name", "")).lstrip("/") for container in containers if _is_left(container)]
    return [name for name in left if ask_engine(engine, *engine.removal, name).ok]


def _is_left(container: dict[str, Any]) -> bool:
    """Return True if no supervisor owns a container; one of another namespace of process IDs is not seen here."""
    label = str(((container.get("Config") or {}).get("Labels") or {}).get(_LABEL, ""))
    namespace, _, supervisor = label.partition(".")
    number = whole_number(supervisor)
    return namespace == _pid_namespace() and number is not None and supervisor_spec(number) is None


def _pid_namespace() -> str:
    """Return the number of this process's namespace of process IDs."""
    return re.sub("[^0-9]", "", str(Path("/proc/self/ns/pid").readlink()))


def _mounts(settings: ServerSettings) -> list[str]:
    """Return the model's folder and the files that its links lead to; for a model of the hub, the hub's folder."""
    model = Path(settings.model)
    if not model.is_dir():
        return [str(hub_folder())]
    linked = model_links(model)
    if linked.others:
        warn(f"links in {model} lead to what no model needs, which the container does not get: {linked.in_words}")
    return [f"{place}:ro" for place in dict.fromkeys((model, model.resolve(), *linked.needed))]
