"""A performance run under power: the same run twice, in one session of the official client, of which the second counts.

The session lies beside the folder of the run, with the settings and the wiring that the user states. Both appear only
when all is done: after a kill the step begins again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from cm4vllm.common import input_types
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.errors import RunFailed, UsageError
from cm4vllm.common.files import bytes_of, mapped, text_of, typed_path, write_bytes, write_text
from cm4vllm.common.folders.owned_folders import discard, forget, move_result, write_noted
from cm4vllm.common.folders.ownership_notes import note_finished
from cm4vllm.common.progress import warn
from cm4vllm.common.settings import Key
from cm4vllm.loadgen.measurement import RunInputs
from cm4vllm.power.making import (
    OUTPUT,
    Site,
    SiteInputs,
    make_session,
    require_hosts,
    require_reachable,
    several_analyzers,
)
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.logs.run_logs import SUMMARY_LOG
from cm4vllm.records.power.session import SESSION, PowerSession, session_beside
from cm4vllm.records.power.supplies import SUPPLIES, read_supplies
from cm4vllm.results.checks.power import session_findings
from cm4vllm.rules import round_names, round_terms

_SETTINGS, _TABLE = "power_settings", "analyzer_table.md"
_NO_SESSION = "it has no power session"

Measure = Callable[[RunInputs], Path]


class PowerInputs(SiteInputs, frozen=True, kw_only=True):
    """The settings of a run under power: its servers, and the pages of the user on the system and the analyzer.

    `under_power` asks a step to make its run under power: yes, or simulated.
    """

    power: input_types.Power = "no"
    under_power: Annotated[str, Key("CM_MLPERF_UNDER_POWER")] = ""
    settings_file: input_types.PowerSettings = ""
    wiring_file: input_types.PowerWiring = ""
    supplies_file: input_types.PowerSupplies = ""
    num_analyzers: input_types.NumAnalyzers = 1

    @property
    def own_site(self) -> Site:
        return self.as_site(simulated="simulated" in (self.power, self.under_power))


def require_power(asked: PowerInputs, *, tree: bool) -> None:
    """Refuse a job whose power cannot be measured, or of which no `tree` could be made, before anything is started.

    Raises UsageError, ServerUnreachable.
    """
    if asked.power == "no":
        return
    if asked.num_analyzers != 1:
        raise several_analyzers(asked.num_analyzers)
    require_hosts(asked.own_site)
    if asked.power == "yes":
        for value, flag, title in (
            (asked.settings_file, "--power_settings", "the settings of the measured system"),
            (asked.wiring_file, "--power_wiring", "the analyzer's wiring"),
        ):
            if tree and not value:
                raise UsageError(
                    f"{title} must be stated", cause="a submission with power holds them", remedy=f"give {flag}=FILE"
                )
            if value and not typed_path(value).is_file():
                raise UsageError(f"no file {value}", cause=f"{flag} names it", remedy=f"give {flag}=FILE")
    if asked.supplies_file:
        if not round_terms(asked.round).power.supplies:
            first = next(name for name in round_names() if round_terms(name).power.supplies)
            raise UsageError(
                f"{asked.round} has no file of power supplies",
                cause=f"submissions have one from {first} on",
                remedy="leave --power_supplies out",
            )
        read_supplies(typed_path(asked.supplies_file))
    require_reachable(asked.own_site)


def make_powered_run(inputs: RunInputs, asked: PowerInputs, measure: Measure) -> Path:
    """Make the session with `measure`, which makes one run and returns its record's path; return that of the second.

    Raises what `measure` and the session raise.
    """
    folder = inputs.folder
    session, aside = folder.with_name(SESSION), folder.with_name(f"{folder.name}.under-power")
    kept_conf = folder.with_name("under-power.user.conf")
    discard(session)
    discard(aside)
    if inputs.user_conf:  # copied: a run removes the file that was written for it
        write_noted(kept_conf, text_of(Path(inputs.user_conf)))
    again = replace(inputs, output_dir=str(aside), user_conf=str(kept_conf) if inputs.user_conf else "")

    def one_run(logs: Path) -> None:
        made = measure(again).parent
        for name in (DETAIL_LOG, SUMMARY_LOG):
            with mapped(made / name) as data:
                write_bytes(logs / name, data)

    try:
        made = make_session(asked.own_site, session, one_run)
        require_sound(made)
        _state(made, asked)
        note_finished(session)
        move_result(aside, folder)
    finally:
        discard(aside)
        forget(kept_conf)
        forget(session.with_name(OUTPUT))
    inputs.forget_generated_conf()
    return folder / "run.json"


def require_sound(session: PowerSession) -> None:
    """Raise RunFailed for a session in which the checks of a tree will find errors; say what they only warn of.

    That of the simulated PTDaemon is never part of a submission: there all is only said.
    """
    refused = []
    for finding in session_findings(session):
        text = f"{finding.code}: {finding.what}, {finding.file} {finding.field} {finding.value}".rstrip()
        if finding.severity is Severity.ERROR and not session.simulated:
            refused.append((text, finding.remedy))
        else:
            warn(f"the power session: {text}")
    if refused:
        raise RunFailed(
            f"the power session in {session.folder} does not count",
            cause="\n".join(text for text, _ in refused),
            remedy="; ".join(dict.fromkeys(remedy for _, remedy in refused)),
        )


def lacks_session(folder: Path) -> str:
    """Return the reason why the run in a folder, which is to be made under power, cannot be kept; empty where it can.

    It has no session, or one with files that are missing, lack parts, or have another digest than the session states.
    """
    if (session := session_beside(folder)) is None:
        return _NO_SESSION
    changed = dict.fromkeys([*session.missing, *session.missing_parts, *(name for name, *_ in session.changed_files())])
    return f"files of its power session have been changed or removed: {', '.join(changed)}" if changed else ""


def _state(session: PowerSession, asked: PowerInputs) -> None:
    """Put beside the session what the user states, and the table of the analyzer as PTDaemon identified it."""
    if asked.settings_file:
        source = typed_path(asked.settings_file)
        write_bytes(session.folder / f"{_SETTINGS}{source.suffix or '.md'}", bytes_of(source))
    if asked.supplies_file:
        write_bytes(session.folder / SUPPLIES, bytes_of(typed_path(asked.supplies_file)))
    names = dict.fromkeys(
        (identity.model, identity.version, identity.calibrated, " ".join(identity.instrument))
        for identity in session.identities
    )
    rows = [
        f"| {model} | {instrument} | {version} | {calibrated or 'not stated'} |"
        for model, version, calibrated, instrument in names
    ]
    wiring = bytes_of(typed_path(asked.wiring_file)).decode(errors="replace") if asked.wiring_file else ""
    head = ["| PTDaemon's name | analyzer | PTDaemon | calibrated |", "|---|---|---|---|"]
    write_text(session.folder / _TABLE, "\n".join(["# Power analyzer", "", *head, *rows, "", wiring]).rstrip() + "\n")
