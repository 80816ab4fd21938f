"""The power session of a result: its files, its samples against LoadGen's window, and the analyzer's own statements.

The official power checker compares digests, clocks of client and server, and the means of both runs. It compares
neither the analyzer's clock nor the coverage of the window; its check of uncertainty reaches no run below 1,600 s.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.common.checking.findings import Finding, Severity
from cm4vllm.records.logs.detail_log import Window
from cm4vllm.records.power.protocol import is_checked, uncertainty_of
from cm4vllm.records.power.samples import MOST_W, SAMPLES, Sample, Samples, mean_watts
from cm4vllm.records.power.session import FETCHED_ONLY, PTD_LOG, SERVER_JSON, Phase, PowerSession
from cm4vllm.records.power.statements import contradictions
from cm4vllm.results.checks.subjects import with_submission
from cm4vllm.results.model import Result, Submission
from cm4vllm.rules import tree_layouts

_CHECKER = "mlcommons/power-dev, compliance/check.py"
_OWN = "a design rule of cm4vllm"
_AGAIN = "measure again: ranging and testing, in one session"
_AS_WRITTEN = "publish the files as the official client wrote them"
#: Seconds that the first and the last sample may be away from the ends of the window, and samples from each other.
_EDGE_S, _GAP_S = 2.0, 3.0
#: The part of the samples in the window that must be above zero.
_COVERED = 0.99
#: The most that the analyzer's clock may differ from the server's, in s, as the official programs allow two machines;
#: from the second value on no late or missing first sample explains it, and the mean is that of other seconds.
_CLOCK_S, _OTHER_CLOCK_S = 0.4, 1.5
#: The greatest uncertainty in percent, and the greatest fall of the mean power from ranging to testing.
_UNCERTAINTY, _FALL = 1.0, 0.05
#: The change by rounding in a sum of channels and in a mean.
_SUM, _MEAN = 1e-3, 1e-5
_STATED = ("analyzer_table", "power_settings")


@dataclass(frozen=True)
class _Measured:
    """The power session of a result; `place` is the path of the result's performance folder as findings name it."""

    session: PowerSession
    place: str

    def file(self, phase: Phase) -> str:
        return f"{self.place}/{phase}/{SAMPLES}"

    @property
    def phases(self) -> Iterator[tuple[Phase, Window, Samples]]:
        """The phases whose window is known."""
        return (
            (phase, window, self.session.samples(phase)) for phase in Phase if (window := self.session.window(phase))
        )


def _results_with_power(submission: Submission) -> Iterator[tuple[Result, _Measured]]:
    """Yield each result that has a power session, with it."""
    return (
        (result, _Measured(session, f"{result.folder}/performance"))
        for result in submission.results
        if (session := submission.sessions.get(result.folder))
    )


@check(
    "POWER-SIMULATED",
    source="inference_policies/power_measurement.adoc",
    remedy="measure with an analyzer; a session with the simulated PTDaemon is a rehearsal",
    stage=Stage.TREE,
    each=_results_with_power,
)
def simulated(_: Result, measured: _Measured) -> Iterator[Fault]:
    """Power was measured by an analyzer, not by the simulated PTDaemon."""
    if files := measured.session.simulated:
        yield Fault("the power was simulated, and not measured", f"{measured.place}/{files[0]}", value=", ".join(files))


@check(
    "POWER-FILES",
    source=f"{_CHECKER}, RESULT_PATHS; tools/submission/submission_checker/checks/power_check.py",
    remedy=f"{_AS_WRITTEN}, without {FETCHED_ONLY}",
    stage=Stage.TREE,
    each=_results_with_power,
)
def files(_: Result, measured: _Measured) -> Iterator[Fault]:
    """A power session has all of its files, each with what the official programs write in it, and no file that only the
    client needs.
    """
    yield from (
        Fault("a file of the power session is missing", f"{measured.place}/{name}") for name in measured.session.missing
    )
    yield from (
        Fault(
            "a file of the power session lacks parts, or has them in another form",
            f"{measured.place}/{file}",
            ", ".join(keys),
        )
        for file, keys in measured.session.missing_parts.items()
    )
    if (measured.session.folder / FETCHED_ONLY).exists():
        yield Fault("a file that the client fetches must not be published", f"{measured.place}/{FETCHED_ONLY}")


@check(
    "POWER-HASH", source=f"{_CHECKER}, results_check", remedy=_AS_WRITTEN, stage=Stage.TREE, each=_results_with_power
)
def digests(_: Result, measured: _Measured) -> Iterator[Fault]:
    """The files of a power session have the digests that client.json and server.json state."""
    return (
        Fault("a file of the power session was changed", f"{measured.place}/{name}", "SHA-1", own, stated)
        for name, own, stated in measured.session.changed_files()
    )


@check(
    "POWER-ONE-SESSION",
    source=f"{_CHECKER}, uuid_check, session_name_check, messages_check, results_check, phases_check",
    remedy=_AS_WRITTEN,
    stage=Stage.TREE,
    each=_results_with_power,
)
def one_session(_: Result, measured: _Measured) -> Iterator[Fault]:
    """client.json and server.json state the same session: name, identifiers, messages, digests and times."""
    apart = list(contradictions(measured.session.client, measured.session.server))
    for field, client, server in apart[:1]:
        more = f"; {len(apart) - 1} more parts differ" if len(apart) > 1 else ""
        yield Fault(
            f"client and server do not state the same session{more}",
            f"{measured.place}/{SERVER_JSON}",
            field,
            server,
            client,
        )


@check("POWER-WINDOW", source=_OWN, remedy=_AGAIN, stage=Stage.TREE, each=_results_with_power)
def window(_: Result, measured: _Measured) -> Iterator[Fault]:
    """The analyzer measured the whole run: a sample within {_EDGE_S:g} s of each end of LoadGen's window."""
    for phase, span, samples in measured.phases:
        inside = samples.within(span.begin, span.end)
        if not inside:
            yield Fault("no sample lies in the measured window", measured.file(phase), "Time")
            continue
        yield from (
            Fault(
                f"the samples do not reach the {end} of the run",
                measured.file(phase),
                "Time",
                f"{late:.1f} s",
                f"{_EDGE_S:g} s or less",
            )
            for end, late in (
                ("begin", (inside[0].at - span.begin).total_seconds()),
                ("end", (span.end - inside[-1].at).total_seconds()),
            )
            if late > _EDGE_S
        )


@check(
    "POWER-IMPOSSIBLE",
    source=f"{_OWN}; the official checkers average any number above zero",
    remedy="look for errors in PTDaemon's log, choose other ranges, and measure again",
    stage=Stage.TREE,
    each=_results_with_power,
)
def impossible(_: Result, measured: _Measured) -> Iterator[Fault]:
    """No sample of a run states a power that no system draws: {MOST_W:g} W and more, or no finite number."""
    for phase, span, samples in measured.phases:
        wrong = [sample for sample in samples.within(span.begin, span.end) if sample.impossible]
        if wrong:
            yield Fault(
                f"{len(wrong)} samples of the run are not a power",
                measured.file(phase),
                "Watts",
                f"{wrong[0].watts:g}",
                f"less than {MOST_W:g}",
            )


@check(
    "POWER-COVERAGE", source=_OWN, remedy=_AGAIN, severity=Severity.WARNING, stage=Stage.TREE, each=_results_with_power
)
def coverage(_: Result, measured: _Measured) -> Iterator[Fault]:
    """{_COVERED:.0%} of the samples of a run are above zero, no line of them is damaged, and none are missing for
    {_GAP_S:g} s.
    """
    for phase, span, samples in measured.phases:
        inside = samples.within(span.begin, span.end)
        usable = sum(sample.usable for sample in inside)
        if inside and usable < _COVERED * len(inside):
            yield Fault(
                "samples of the run are not above zero, and are left out of the mean",
                measured.file(phase),
                "Watts",
                f"{len(inside) - usable} of {len(inside)}",
                f"{1 - _COVERED:.0%} or less",
            )
        gap = max(((later.at - sample.at).total_seconds() for sample, later in pairwise(inside)), default=0.0)
        if gap > _GAP_S:
            yield Fault(
                "samples of the run are missing", measured.file(phase), "Time", f"{gap:.1f} s", f"{_GAP_S:g} s or less"
            )
        if samples.damaged:
            lines = ", ".join(str(number) for number in samples.damaged[:5])
            yield Fault("lines of samples are cut or merged", measured.file(phase), "", f"line {lines}")


@check(
    "POWER-CLOCK",
    source=f"{_OWN}; ptd_client_server/lib/time_sync.py states the tolerance for two machines",
    remedy="set the clock of the director, and measure again",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=_results_with_power,
)
def clock(result: Result, measured: _Measured) -> Iterator[Fault]:
    """The clock of the analyzer's samples is that of the server: within {_CLOCK_S:g} s; {_OTHER_CLOCK_S:g}
    s and more are an error.
    """
    for phase, _, samples in measured.phases:
        started = measured.session.start_of(phase)
        if started is None or not samples.samples:
            continue
        apart = (samples.samples[0].at - started).total_seconds()
        if abs(apart) > _CLOCK_S:
            yield Fault(
                "the first sample is far from the server's command: the clocks differ, or samples are missing",
                measured.file(phase),
                "Time",
                f"{apart:+.3f} s",
                f"{_CLOCK_S:g} s or less",
                severity=Severity.ERROR if abs(apart) >= _OTHER_CLOCK_S else None,
            )


@check(
    "POWER-UNCERTAINTY",
    source=f"{_CHECKER}, check_ptd_logs; the checker itself reads warnings from 800 s after the begin of a run on",
    remedy="choose ranges nearer to the power of the run, or an analyzer for it, and measure again",
    stage=Stage.TREE,
    each=_results_with_power,
)
def uncertainty(_: Result, measured: _Measured) -> Iterator[Fault]:
    """PTDaemon checks the uncertainty of the samples, and none of the run has one above {_UNCERTAINTY:g} %."""
    if PTD_LOG in measured.session.missing:
        return
    file, span = f"{measured.place}/{PTD_LOG}", measured.session.window(Phase.TESTING)
    begin = measured.session.logged_window(Phase.RANGING)[0]
    checked = next((line.at for line in measured.session.ptd_log if is_checked(line)), None)
    if checked is None or (begin is not None and checked > begin):
        yield Fault(
            "PTDaemon did not check the uncertainty of all samples",
            file,
            "Uncertainty checking",
            "none",
            "before ranging",
        )
    above = [
        value
        for line in measured.session.ptd_log
        if span and span.begin < line.at < span.end and (value := uncertainty_of(line)) is not None
    ]
    worst = max(above, default=0.0)
    if worst > _UNCERTAINTY:
        yield Fault(
            f"{len(above)} samples of the run are uncertain",
            file,
            "Uncertainty",
            f"{worst:.2f} % at most",
            f"{_UNCERTAINTY:g} % or less",
        )


@check("POWER-CHANNELS", source=_OWN, remedy=_AS_WRITTEN, stage=Stage.TREE, each=_results_with_power)
def channels(_: Result, measured: _Measured) -> Iterator[Fault]:
    """A sample has the reading of every channel or analyzer, and they add up to the whole."""
    wanted = max((identity.channels for identity in measured.session.identities), default=1)
    for phase, span, samples in measured.phases:
        yield from _channels(measured.file(phase), samples.within(span.begin, span.end), wanted)


def _channels(file: str, samples: tuple[Sample, ...], wanted: int) -> Iterator[Fault]:
    for sample in samples:
        parts = sample.channels
        if len(parts) < wanted and wanted > 1:
            yield Fault("a channel is missing", file, str(sample.at), f"{len(parts)} channels", f"{wanted} channels")
            return
        whole = sum(parts.values())
        if parts and sample.usable and abs(whole - sample.watts) > _SUM * sample.watts:
            yield Fault("the channels do not add up", file, str(sample.at), f"{whole:g} W", f"{sample.watts:g} W")
            return


@check("POWER-MEAN", source=_OWN, remedy=_AS_WRITTEN, stage=Stage.TREE, each=_results_with_power)
def mean(_: Result, measured: _Measured) -> Iterator[Fault]:
    """The mean that PTDaemon stated for a measurement is that of the published samples."""
    stated = [totals.mean for totals in measured.session.totals]
    if len(stated) < len(Phase) or len(measured.session.analyzers) > 1:
        return
    for phase, said in ((Phase.RANGING, stated[0]), (Phase.TESTING, stated[-1])):
        own = mean_watts(measured.session.samples(phase).samples)
        if own is not None and abs(own - said) > _MEAN * said:
            yield Fault("the samples have another mean", measured.file(phase), "Watts", f"{own:.6f} W", f"{said:.6f} W")


@check("POWER-RANGING", source=f"{_CHECKER}, phases_check", remedy=_AGAIN, stage=Stage.TREE, each=_results_with_power)
def ranging(_: Result, measured: _Measured) -> Iterator[Fault]:
    """The mean power of testing is at most {_FALL:.0%} below that of ranging."""
    means = {phase: mean_watts(samples.within(span.begin, span.end)) for phase, span, samples in measured.phases}
    before, after = means.get(Phase.RANGING), means.get(Phase.TESTING)
    if before and after and after <= before * (1 - _FALL):
        yield Fault(
            "the run that counts drew less power than the run before it",
            measured.file(Phase.TESTING),
            "Watts",
            f"{after:.3f} W",
            f"more than {before * (1 - _FALL):.3f} W",
        )


@check(
    "POWER-PTD-LOG-CUT",
    source=f"{_CHECKER}, check_ptd_logs",
    remedy="measure again, for longer: the official server copies the log before all of it is written",
    stage=Stage.TREE,
    each=_results_with_power,
)
def ptd_log(_: Result, measured: _Measured) -> Iterator[Fault]:
    """PTDaemon's log has begin and end of both measurements, around LoadGen's window of each."""
    if PTD_LOG in measured.session.missing:
        return
    file, edge = f"{measured.place}/{PTD_LOG}", timedelta(seconds=_EDGE_S)
    for phase in Phase:
        (begin, end), span = measured.session.logged_window(phase), measured.session.window(phase)
        if begin is None or end is None:
            field = "Go with mark" if begin is None else "Completed test"
            which = "the begin" if begin is None else "the end"
            yield Fault(f"PTDaemon's log lacks {which} of {phase.key}", file, field, "none", "one of each measurement")
        elif span and not begin - edge <= span.begin <= span.end <= end + edge:
            yield Fault(
                f"PTDaemon's log is of other times than the run of {phase.key}",
                file,
                "Go with mark",
                f"{begin} to {end}",
                f"around {span.begin} to {span.end}",
            )


@check(
    "POWER-SETTINGS",
    source="tools/submission/submission_checker/constants.py, REQUIRED_POWER_MEASURE_FILES",
    remedy="put analyzer_table.* and power_settings.* beside the measurements of the result",
    stage=Stage.TREE,
    each=with_submission(_results_with_power),
)
def settings(submission: Submission, result: Result, _: _Measured) -> Iterator[Fault]:
    """The settings of the measured system and the analyzer and its wiring are stated."""
    folder = submission.root / result.folder
    of_layouts = (
        layout.settings_of(submission.home, result.system, result.model, folder.name) for layout in tree_layouts()
    )
    places = [folder, *folder.parents[:3], *of_layouts]
    yield from (
        Fault(f"no {name} of the power session", result.folder, "", "", f"{name}.*")
        for name in _STATED
        if not any(path.is_file() for place in places for path in place.glob(f"{name}.*"))
    )


@check(
    "POWER-TWO-ANALYZERS",
    source="mlcommons/power-dev, ptd_client_server/lib/server.py: a session with two cannot end as the checker asks",
    remedy="measure with one analyzer of several channels",
    stage=Stage.TREE,
    each=_results_with_power,
)
def analyzers(_: Result, measured: _Measured) -> Iterator[Fault]:
    """Power was measured with one analyzer, of one channel or of several."""
    if (count := len(measured.session.analyzers)) > 1:
        yield Fault("power was measured with several analyzers", f"{measured.place}/{SERVER_JSON}", "ptd_config", count)


def session_findings(session: PowerSession) -> list[Finding]:
    """Return what the checks of a tree will find in a session that has just ended. Files are named from its folder."""
    # Those that need no tree.
    known = (files, digests, one_session, window, impossible, coverage, clock, uncertainty, channels, mean, ranging)
    measured = _Measured(session, ".")
    return [each.finding(fault) for each in (*known, ptd_log) for fault in each.function(None, measured)]
