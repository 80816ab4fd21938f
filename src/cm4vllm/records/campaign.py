"""The records campaign.json and command.json: the command of a campaign, as the pages quote it."""

from collections.abc import Mapping

from cm4vllm.common.records import Record
from cm4vllm.rules import Division, ExecutionMode, Scenario

#: The name of the record's file in the folder of a campaign's results, and in that of a curve's.
CAMPAIGN_FILE, COMMAND_FILE = "campaign.json", "command.json"
#: The flag of the main job for the target of a scenario's runs. Interactive has the pace of LoadGen's Server.
TARGET_FLAGS: Mapping[Scenario, str] = {
    Scenario.OFFLINE: "offline_target_qps",
    Scenario.SERVER: "server_target_qps",
    Scenario.INTERACTIVE: "server_target_qps",
    Scenario.SINGLE_STREAM: "singlestream_target_latency",
}


class CommandRecord(Record, frozen=True, kw_only=True):
    """The command of a job, and the program that ran it.

    `command` is the exact `cm` command line, quoted for a shell. `commit` is cm4vllm's own, empty where it is not in a
    checkout, and `program_sha256` one digest of its files.
    """

    command: str
    cm_version: str
    cm4vllm_version: str
    execution_mode: ExecutionMode
    started_at: str
    commit: str = ""
    program_sha256: str = ""


class CampaignRecord(CommandRecord, frozen=True, kw_only=True):
    """The command of a campaign and what it resolved to.

    `system` and `model` name the folders under runs/ that
    belong to the campaign; they are needed only where more than one lies there. `simulated` names the profile of the
    simulated server, where there is one.
    `searched_options` are those of vLLM that --search chose, empty where there was no search; `search_evidence` says
    how much better the other options that it tried may be.
    """

    division: Division
    submitter: str
    round: str
    benchmark: str
    system: str = ""
    model: str = ""
    simulated: str = ""
    searched_options: str = ""
    search_evidence: str = ""
