"""The rules of MLPerf Endpoints that get,mlperf,rules gives: those that come with cm4vllm, or newer ones.

Newer ones come from a release of the official checker (its data files alone are read, nothing of it is run) and from
files. Nothing is fetched but the release that was asked for, from the package index that pip is configured with.
"""

import sys
import zipfile
import zlib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from msgspec.structs import replace

from cm4vllm.common.clock import present
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import json_text, typed_path, write_text
from cm4vllm.common.programs.environments import pip, require_success
from cm4vllm.common.progress import say
from cm4vllm.common.settings import Key, Settings
from cm4vllm.rules import (
    EndpointsRules,
    RulesInputs,
    endpoints_rules,
    plain_rules,
    read_rules,
    rules_digest,
    with_drafters,
    with_seed_sets,
)

#: The data files of the checker in its wheel, with the part of the rules that each has.
_DATA = {
    "submission_checker/data/seed_sets.yaml": with_seed_sets,
    "submission_checker/data/approved_drafters.yaml": with_drafters,
}
#: The folder of renewed rules in a CM home.
_FOLDER = "mlperf-rules"
#: A data file is a few thousand characters.
_LARGEST = 2**20


class RenewalSettings(Settings, frozen=True, kw_only=True):
    """The inputs of get,mlperf,rules: a release of the official checker, by its version or as a wheel, and files."""

    checker_version: Annotated[str, Key("CM_MLPERF_ENDPOINTS_CHECKER_VERSION")] = ""
    checker_wheel: Annotated[str, Key("CM_MLPERF_ENDPOINTS_CHECKER_WHEEL")] = ""
    rules: RulesInputs = RulesInputs()


def renew_rules(settings: RenewalSettings, home: Path) -> Path:
    """Write the rules that the settings name to the CM home, and return their file.

    Raises UsageError, InstallError where a release cannot be fetched.
    """
    rules = RulesInputs(rules_file=settings.rules.rules_file).chosen()
    with TemporaryDirectory() as scratch:
        wheel = _wheel(settings, Path(scratch))
        rules = with_release(rules, wheel, Path(scratch)) if wheel else rules
    rules = settings.rules.chosen_from(rules)
    path = home / _FOLDER / f"rules-{rules.dated}-{rules_digest(rules)[:8]}.json"
    write_text(path, json_text(plain_rules(rules)))
    for line in rules_lines(rules, present().date()):
        say(line)
    say(f"use them with --rules={path}")
    return path


def last_renewal(home: Path) -> Path | None:
    """Return the file that get,mlperf,rules wrote last in a CM home; None where it wrote none."""
    written = (path for path in (home / _FOLDER).glob("rules-*.json") if path.is_file())
    return max(written, key=lambda path: path.stat().st_mtime, default=None)


def known_rules(home: Path, day: date) -> Iterator[str]:
    """Yield the rules that come with cm4vllm, and those of the last renewal in a CM home."""
    yield from rules_lines(endpoints_rules(), day)
    if (path := last_renewal(home)) is None:
        yield "not renewed here: get,mlperf,rules renews them"
        return
    renewed = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    try:
        first, *others = rules_lines(read_rules(path), day)
    except UsageError as error:
        yield f"last renewal of {renewed}: {error.what}"
        return
    yield f"last renewal of {renewed}: {first}"
    yield from others
    yield f"--rules={path}"


def with_release(rules: EndpointsRules, wheel: Path, scratch: Path) -> EndpointsRules:
    """Return the rules with the data of a release of the official checker. Raises UsageError for another file."""
    package, begun = rules.checker.package, rules.amended_by
    try:
        with zipfile.ZipFile(wheel) as archive:
            version, day = _release(archive, package)
            for name, add in _DATA.items():
                file = scratch / f"{package}-{version}_{Path(name).name}"
                file.write_bytes(_member(archive, name))
                rules = add(rules, file)
    except (OSError, KeyError, ValueError, RuntimeError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{wheel} is no release of {package}",
            cause=str(error),
            remedy="give its wheel, as the package index has it",
        ) from error
    checker = replace(rules.checker, version=version, source=wheel.name)
    # The wheel has a day of its own, and is named as the checker.
    return replace(rules, checker=checker, dated=max(rules.dated, str(day)), amended_by=begun)


def _wheel(settings: RenewalSettings, scratch: Path) -> Path | None:
    """Return the wheel that the settings name, fetched for a version; None for neither. Raises InstallError."""
    if settings.checker_wheel:
        return typed_path(settings.checker_wheel)
    if not settings.checker_version:
        return None
    package = endpoints_rules().checker.package
    words = ["--no-deps", "--only-binary=:all:", f"--dest={scratch}", f"{package}=={settings.checker_version}"]
    require_success(pip(Path(sys.executable), words, action="download"), f"{package} cannot be fetched")
    return next(scratch.glob("*.whl"))


def _release(archive: zipfile.ZipFile, package: str) -> tuple[str, date]:
    """Return the version of a wheel, and the day of its newest data file. Raises ValueError for another package."""
    distribution = package.replace("-", "_")
    folders = {name.partition("/")[0] for name in archive.namelist()}
    names = [folder for folder in folders if folder.startswith(f"{distribution}-") and folder.endswith(".dist-info")]
    if len(names) != 1:
        raise ValueError(f"it has no folder {distribution}-VERSION.dist-info")
    days = [date(*archive.getinfo(name).date_time[:3]) for name in _DATA]
    return names[0].removeprefix(f"{distribution}-").removesuffix(".dist-info"), max(days)


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a file of an archive. Raises ValueError for one that is too large, KeyError for none."""
    with archive.open(name) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"{name} is larger than {_LARGEST:,} bytes")
    return content


def rules_lines(rules: EndpointsRules, day: date) -> Iterator[str]:
    """Yield what rules say on a day: their date and digest, the seed sets, and the cohort that is open."""
    target = rules.target("", day)
    yield f"{rules.title}, SHA-256 {rules_digest(rules)}; checker {rules.checker.version}"
    yield f"seed sets: {'; '.join(map(str, rules.seed_sets))}; {len(rules.drafters)} approved drafters"
    yield (
        f"cohort over: {target.over}" if target.over else f"open cohort: {target.cohort}, seed set {target.seeds.name}"
    )
