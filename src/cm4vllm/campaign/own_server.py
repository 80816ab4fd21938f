"""The server that the job starts: as late as a step needs it, and again where it has ended."""

from collections.abc import Callable
from pathlib import Path

from cm4vllm.campaign.planning.step_environment import Records, StepEnvironment
from cm4vllm.campaign.planning.steps import Recipes, Step
from cm4vllm.common.errors import CmError
from cm4vllm.common.progress import say
from cm4vllm.common.records import read_record
from cm4vllm.common.settings import Settings
from cm4vllm.loadgen.identity import serves_alike
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.launch import LaunchExports
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.server import SERVER_FILE, stop

#: The variation of the server's recipe that is asked for the record of what it would start.
DESCRIBE = "_describe"


def earlier_server(folder: Path, planned: str, model_record: str) -> Path | None:
    """Return the record of the server that an earlier command started in `folder`, if the planned one is the same.

    `planned` and `model_record` are the paths of the records of the planned server and of its model. A record that
    cannot be read is none.
    """
    path = folder / SERVER_FILE
    if not planned or not path.exists():
        return None
    try:
        model = read_record(Path(model_record), ModelRecord)
        alike = serves_alike(read_record(Path(planned), ServerRecord), read_record(path, ServerRecord), model.path)
    except CmError:
        return None
    return path if alike else None


class OwnServer:
    """The server that a step of the job starts; `take` is called with that step each time that it must be started."""

    def __init__(self, step: Step, inputs: Settings, take: Callable[[Step, Settings], None]) -> None:
        self.step = step
        self.was_needed = False
        self._inputs = inputs
        self._take = take
        self._waits = False

    def can_wait(self, recipes: Recipes, environment: StepEnvironment) -> bool:
        """Return True if the server of an earlier command was the same, so that its record tells all before a start.

        `environment` then gets what the step would export.
        """
        inputs = environment.of_step(self.step, self._inputs)
        folder = Path(environment.read(LaunchSettings, inputs).folder)
        if not (folder / SERVER_FILE).exists():
            self.was_needed = True
            return False
        planned = LaunchExports.of(recipes(f"{self.step.tags},{DESCRIBE}", inputs)).planned or ""
        path = earlier_server(folder, planned, environment.read(Records).model_record)
        self._waits = path is not None
        if path is not None:
            say("server: not started until a step needs it: the one of an earlier command was the same")
            record = read_record(path, ServerRecord)
            environment.take(
                LaunchExports(record=str(path), endpoint=record.endpoint, model_folder=record.model_folder)
            )
        self.was_needed = not self._waits
        return self._waits

    def need(self) -> None:
        """Start the server, unless it runs. Raises CmError."""
        if self._waits:
            self._waits, self.was_needed = False, True
            self._take(self.step, self._inputs)

    def end(self, environment: StepEnvironment) -> None:
        """End the server if it runs, since another one is used in its place."""
        if not self._waits:
            stop(read_record(Path(environment.read(Records).server_record), ServerRecord))

    def replace(self, environment: StepEnvironment) -> None:
        """End the rest of this server, so that the next step that needs a server starts another."""
        stop(read_record(Path(environment.read(Records).server_record), ServerRecord))
        self._waits = True
