"""The command that runs a capsule again, and what a replay here would differ in: program, packages and machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec

from cm4vllm import __version__
from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError
from cm4vllm.common.programs.own_program import commit_of_this_repository, url_of_this_repository
from cm4vllm.common.secrets.redaction import PLACEHOLDER
from cm4vllm.common.settings import Key
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.hardware.system_description import SystemAsked, describe_system
from cm4vllm.records.campaign import TARGET_FLAGS
from cm4vllm.records.described_system import KEYS, NETWORK_KEYS
from cm4vllm.records.vllm.given_options import given_options, value_text
from cm4vllm.results.capsule import Capsule
from cm4vllm.results.comparing.compared_settings import ComparedSetting, Group, compare_settings, settings_of
from cm4vllm.results.comparing.verification import Tolerance
from cm4vllm.rules import Mode, Scenario, round_terms, terms
from cm4vllm.serving.options.searchable_options import searchable_options, searched_name
from cm4vllm.submission.campaign_software import detect_software
from cm4vllm.submission.capsule.consent import (
    Asked,
    Consent,
    asked_of,
    flag_name,
    refuse_exposed,
    refuse_unknown,
    refuse_unusable,
    require_consent,
    variables_in,
)
from cm4vllm.submission.published_program import program_digest

#: Flags for the places of a job's files and for its output, which change nothing that is measured; and the flags of
#: searches: a replay has the rates and server settings of the first run.
_NOT_REPEATED = (
    *("output_dir", "results_dir", "rerun", "plan", "submitter", "clean", "serve", "published_results"),
    *("quiet", "silent", "s", "verbose", "v", "time", "space", "j", "json", "out", "print_deps", "print_env"),
)
_SEARCHES, _SEARCHING_TAG = ("search", "search_minutes", "find_target_qps"), "_find-performance"

_NO_CONSENT = Consent()
_NO_HELP: Mapping[str, str] = {}


class ReplayInputs(Tolerance, frozen=True, kw_only=True):
    """The capsule that is run again, into which folder, and what the user has agreed to beforehand."""

    capsule: input_types.CapsuleFile = ""
    of_part: input_types.CapsulePart = ""
    folder: Annotated[str, Key("CM_MLPERF_REPLAY_DIR")] = "mlperf-replay"
    accept: Annotated[str, Key("CM_MLPERF_REPLAY_ACCEPT")] = ""
    fill: Annotated[str, Key("CM_MLPERF_REPLAY_FILL")] = ""


def replay_words(
    capsule: Capsule,
    given: Mapping[str, str],
    environ: Mapping[str, str],
    consent: Consent = _NO_CONSENT,
    *,
    help_of: Mapping[str, str] = _NO_HELP,
    ask: Callable[[Sequence[Asked]], bool] | None = None,
) -> list[str]:
    """Return the words of the `cm` command that runs the capsule again, after `cm run script`.

    `given` are flags of the user's own, which take the place of the capsule's. Rates that the first run measured, the
    server settings that it searched for, the release of vLLM and the revision of the model are fixed. Variables that
    `consent` names are replaced out of `environ`. `ask` asks the user about flags that `consent` does not accept;
    without it they are refused. Raises UsageError for them, where a variable is not named or not set, and where the
    capsule has no command.
    """
    tags, wanted = _replay_command(capsule, given)
    asked = asked_of(tags, {name: value for name, value in wanted.items() if name not in given}, help_of, environ)
    words = {name: f"--{name}" if value is None else f"--{name}={value}" for name, value in wanted.items()}
    for name, word in [("tags", f"--tags={tags}"), *words.items()]:
        if name not in given:
            refuse_exposed(word)
    all_words = [f"--tags={tags}", *words.values()]
    stand_in = dict(sorted((name, word) for word in all_words for name in variables_in(word)))
    refuse_unknown(consent, wanted, stand_in)
    unset = {name for name in stand_in if not environ.get(name)}
    missing = {name: word for name, word in stand_in.items() if name in unset or name not in consent.fill}
    open_questions = [question for question in asked if question.flag not in consent.accept]
    if missing or (open_questions and (ask is None or not ask(open_questions))):
        require_consent(open_questions, missing, unset, consent)
    return [PLACEHOLDER.sub(lambda match: environ[match[0][2:-3]], word) for word in all_words]


def _replay_command(capsule: Capsule, given: Mapping[str, str]) -> tuple[str, dict[str, str | None]]:
    """Return the tags and the flags of the command that runs the capsule again. Raises UsageError where it has none."""
    if capsule.of_curve:
        raise UsageError(
            "the capsule of a curve of MLPerf Endpoints is not replayed",
            cause="a replay runs the job of MLPerf Inference alone",
            remedy="run the `command` of the capsule with another --output_dir, and compare the results: "
            "cm run script --tags=verify,mlperf --capsule=FILE --other=FOLDER",
        )
    tags, flags = _parse_command(capsule.command)
    tags = ",".join(tag for tag in tags.split(",") if tag != _SEARCHING_TAG)
    if not tags:
        raise UsageError(
            "the capsule cannot be run again",
            cause="it does not state the command that made its runs",
            remedy="see its list of what is unknown",
        )
    wanted = {**_fixed_flags(capsule, flags, given), **flags, **given}
    left_out = (*_NOT_REPEATED, *_SEARCHES)
    wanted = {name: value for name, value in wanted.items() if name in given or name not in left_out}
    if "api_server" not in wanted:
        wanted |= _found_settings(capsule.server.command, flags.get("search") or "", wanted.get("extra_args") or "")
    if not any(part.startswith("_r") and part[2:3].isdecimal() for part in tags.split(",")):
        tags += f",{round_terms(capsule.round).variation}"
    return tags, wanted


def _parse_command(command: list[str]) -> tuple[str, dict[str, str | None]]:
    """Return the tags and the flags of a command, after `cm run script`, each flag by the name of the recipes.

    Raises UsageError for other words: cm would read a file for `@FILE`, and take a word alone for a script.
    """
    tags, flags = "", dict[str, str | None]()
    begins = next((at for at, word in enumerate(command) if word.startswith(("-", "@"))), len(command))
    for word in command[begins:]:
        if word.startswith("--tags="):
            tags = word.partition("=")[2]
            continue
        refuse_unusable(word)
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and name.endswith("-"):  # cm's way to say no
            flags[flag_name(name[:-1])] = "no"
        else:
            flags[flag_name(name)] = value if equals else None
    return tags, flags


def _fixed_flags(capsule: Capsule, flags: Mapping[str, str | None], given: Mapping[str, str]) -> dict[str, str | None]:
    """Return flags for what the first run found out by itself, in so far as the command did not say it."""
    fixed: dict[str, str | None] = {}
    for result in capsule.results:
        part = result.performance
        rate = (part.conditions.client.get("target_qps") or part.settings.get("target_qps")) if part else None
        if isinstance(rate, int | float) and rate > 0:
            rules = terms(capsule.round, capsule.benchmark, Scenario.parse(result.scenario), Mode.PERFORMANCE)
            name, value = TARGET_FLAGS[rules.scenario], str(1000 / rate if rules.one_by_one else float(rate))
            if fixed.setdefault(name, value) != value:
                raise UsageError(
                    f"the runs of the capsule have several rates for --{name}",
                    cause=f"{fixed[name]} and {value}",
                    remedy="replay one scenario: --tags=replay,mlperf --scenario=NAME",
                )
    server, hub = capsule.server, capsule.model.get("hub", "")
    if server.software == "vLLM" and server.version and not {"api_server", "vllm_wheel"} & {*flags, *given}:
        fixed["vllm_version"] = server.version.partition("+")[0]
    if hub and capsule.model.get("revision"):
        fixed["revision"] = capsule.model["revision"]
    return fixed


def _found_settings(server: list[str], search: str, extra: str) -> dict[str, str]:
    """Return the options that --search names as they stand in the command of the first server: each as its own flag.

    Those without one stand in --extra_args, before `extra`.
    """
    flags, others, values = dict[str, str](), list[str](), given_options(server)
    for name in dict.fromkeys(searched_name(part) for part in search.split(",")):
        option, given = searchable_options().get(name), values.get(name)
        if option is not None and given is not None:
            value = value_text(given)
            if not re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII):
                raise UsageError(
                    f"the capsule's server has no number for --{name}",
                    cause=f"{value!r} stands in the command of the server, and is searched for",
                    remedy="replay it only if its source is trusted, after you corrected `server.command` in it",
                )
            if option.input:
                flags[option.input] = value
            else:
                others.append(f"--{name}={value}")
    return flags | ({"extra_args": " ".join([*others, extra]).strip()} if others else {})


#: Keys of a system's description without those of the submission.
_OF_THE_MACHINE = {*KEYS, *NETWORK_KEYS} - {
    *("submitter", "division", "status", "hw_notes", "sw_notes", "system_type", "system_type_detail", "framework")
}


def compare_environment(capsule: Capsule) -> list[ComparedSetting]:
    """Compare the program, packages and machine of a capsule with this program, its packages and this machine."""
    software = detect_software()
    described = describe_system(
        detect_machine(),
        SystemAsked(
            submitter=capsule.submitter,
            division=capsule.division,
            system_type="datacenter",
            vllm="",
            packages={},
            used=None,
            rehearsal=capsule.rehearsal,
        ),
    )
    here = msgspec.structs.replace(
        capsule,
        packages=software.packages,
        contents=software.contents,
        machine={key: value for key, value in described.items() if key in _OF_THE_MACHINE},
        program={
            "name": "cm4vllm",
            "version": __version__,
            "commit": commit_of_this_repository(),
            "url": url_of_this_repository(),
            "files_sha256": program_digest(),
            "cm": software.cm,
            "python": software.python,
        },
    )
    rows = compare_settings({"": [settings_of(side, None, None) for side in (capsule, here)]})
    return [row for row in rows if row.group in (Group.PROGRAM, Group.PACKAGES, Group.CONTENTS, Group.SYSTEM)]
