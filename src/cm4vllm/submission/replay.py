"""The command that runs a capsule again, and what differs here before it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from cm4vllm import __version__
from cm4vllm.common.command_lines import options
from cm4vllm.common.errors import UsageError
from cm4vllm.common.program import commit_of_this_repository, url_of_this_repository
from cm4vllm.common.redaction import PLACEHOLDER
from cm4vllm.hardware.description import SystemAsked, describe_system
from cm4vllm.hardware.machine import detect_machine
from cm4vllm.results.records import CAMPAIGN_FILE
from cm4vllm.rules import Mode, Scenario, terms
from cm4vllm.serving.searchable import searchable_options, searched_name
from cm4vllm.submission.capsule import CAPSULE_FILE, Capsule, CapsuleServer, read_capsule
from cm4vllm.submission.capsule_of_results import capsule_of_results, machine_of
from cm4vllm.submission.capsule_of_tree import capsules_of_tree
from cm4vllm.submission.software import detect_software
from cm4vllm.submission.sources import program_digest

__all__ = ["capsule_at", "capsules_at", "replay_words", "this_place", "with_scenarios"]

#: Flags that say where a job's files go and what it prints, not what it measures; and those that make it search for
#: what the first run found: rates and server settings, which are fixed instead.
_NOT_REPEATED = ("output_dir", "results_dir", "rerun", "plan", "quiet", "j", "out", "submitter", "clean", "print_deps")
_SEARCHES, _SEARCHING_TAG = ("search", "search_minutes", "find_target_qps"), "_find-performance"


def capsule_at(place: Path, chosen: str = "") -> Capsule:
    """Return the capsule that a file holds, or that is made of a results folder or a submission tree.

    `chosen` is SYSTEM/MODEL where a tree has several. Raises UsageError where it is not clear which is meant.
    """
    found = capsules_at(place)
    meant = [one for one in found if not chosen or f"{one.system}/{one.model['name']}" == chosen]
    if len(meant) == 1:
        return meant[0]
    names = ", ".join(f"{one.system}/{one.model['name']}" for one in found)
    raise UsageError(
        f"{place} holds {'several capsules' if not chosen else f'no capsule {chosen}'}",
        cause=names,
        remedy="choose one: --capsule_of=SYSTEM/MODEL of verify,mlperf",
    )


def capsules_at(place: Path) -> list[Capsule]:
    """Return all capsules of a file, a results folder or a submission tree."""
    if (place / CAMPAIGN_FILE).is_file():
        return [capsule_of_results(place)]
    if place.is_dir() and not (place / CAPSULE_FILE).is_file():
        return capsules_of_tree(place)
    return [read_capsule(place / CAPSULE_FILE if place.is_dir() else place)]


def this_place(capsule: Capsule) -> Capsule:
    """Return the capsule as it is before a run here: with this program, its packages, and this machine."""
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
    return msgspec.structs.replace(
        capsule,
        packages=software.packages,
        contents=software.contents,
        machine=machine_of(described),
        program={
            "name": "cm4vllm",
            "version": __version__,
            "commit": commit_of_this_repository(),
            "url": url_of_this_repository(),
            "files_sha256": program_digest(),
            "cm": software.cm,
            "python": software.python,
        },
        server=CapsuleServer(),
    )


def with_scenarios(capsule: Capsule, scenarios: Collection[str]) -> Capsule:
    """Return the capsule with the runs of these scenarios alone."""
    return msgspec.structs.replace(capsule, runs=[run for run in capsule.runs if run.scenario in scenarios])


def replay_words(capsule: Capsule, given: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Return the words of the `cm` command that runs the capsule again, after `cm run script`.

    `given` are flags of the user's own, which take the place of the capsule's. Rates that the first run measured, the
    server settings that it searched for, the release of vLLM and the revision of the model are fixed. Variables are
    replaced out of `environ`. Raises UsageError where one is not set, and where the capsule has no command.
    """
    tags, flags = _parsed(capsule.command)
    tags = ",".join(tag for tag in tags.split(",") if tag != _SEARCHING_TAG)
    if not tags:
        raise UsageError(
            "the capsule cannot be run again",
            cause="it does not state the command that made its runs",
            remedy="see its list of what is unknown",
        )
    wanted = {**_fixed(capsule, flags, given), **flags, **given}
    left_out = (*_NOT_REPEATED, *_SEARCHES)
    wanted = {name: value for name, value in wanted.items() if name in given or name not in left_out}
    if "api_server" not in wanted:
        wanted |= _found_settings(capsule.server.command, flags.get("search") or "", wanted.get("extra_args") or "")
    if not any(part.startswith("_r") and part[2:3].isdigit() for part in tags.split(",")):
        tags += f",_r{capsule.round.removeprefix('v')}"
    words = [
        f"--tags={tags}",
        *(f"--{name}={value}" if value is not None else f"--{name}" for name, value in wanted.items()),
    ]
    missing = dict(sorted((name, word) for word in words for name in _variables(word) if not environ.get(name)))
    if missing:
        raise UsageError(
            "the capsule has no values of paths, servers and secrets of the first command",
            cause="; ".join(f"no value of {name}, which stands in {word}" for name, word in missing.items()),
            remedy=f"set those of this machine: export {' '.join(f'{name}=...' for name in missing)}",
        )
    return [PLACEHOLDER.sub(lambda found: environ[found[0][2:-3]], word) for word in words]


def _parsed(command: list[str]) -> tuple[str, dict[str, str | None]]:
    """Return the tags and the flags of a command."""
    tags, flags = "", dict[str, str | None]()
    for word in command:
        if word.startswith("--tags="):
            tags = word.partition("=")[2]
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags[name] = value if equals else None
    return tags, flags


def _variables(word: str) -> Iterator[str]:
    return (found[2:-3] for found in PLACEHOLDER.findall(word))


def _fixed(capsule: Capsule, flags: Mapping[str, str | None], given: Mapping[str, str]) -> dict[str, str | None]:
    """Return flags for what the first run found out by itself, in so far as the command did not say it."""
    fixed: dict[str, str | None] = {}
    for run in capsule.runs:
        rate = run.client.get("target_qps") or run.settings.get("target_qps")
        if run.mode == Mode.PERFORMANCE and isinstance(rate, int | float) and rate > 0:
            name, value = _target(capsule, run.scenario, float(rate))
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
    flags, others, values = dict[str, str](), list[str](), dict(options(server))
    for name in dict.fromkeys(searched_name(part) for part in search.split(",")):
        option, value = searchable_options().get(name), values.get(f"--{name}")
        if option is not None and value is not None:
            if option.input:
                flags[option.input] = value
            else:
                others.append(f"--{name}={value}")
    return flags | ({"extra_args": " ".join([*others, extra]).strip()} if others else {})


def _target(capsule: Capsule, scenario: str, rate: float) -> tuple[str, str]:
    found = terms(capsule.round, capsule.benchmark, Scenario.parse(scenario), Mode.PERFORMANCE)
    if found.one_by_one:
        return "singlestream_target_latency", str(1000 / rate)
    return ("offline_target_qps" if found.at_once else "server_target_qps"), str(rate)
