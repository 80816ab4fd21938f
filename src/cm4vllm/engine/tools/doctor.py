"""`cm doctor script`: what is wrong with this machine's CM home, and what to do about it."""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from cm4vllm.common.checking.findings import Finding, Severity
from cm4vllm.common.errors import CmError
from cm4vllm.common.units import size_text
from cm4vllm.engine.cache.cache_commands import count_in_words, leftovers, size_of
from cm4vllm.engine.cache.entries import STATE_FILE, Cache, Damaged, Entry, finished_entries
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.meta_files import json_mapping
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.plan.chain import layers_of
from cm4vllm.engine.run.python_packages import missing_of
from cm4vllm.engine.tools.lint import Linter
from cm4vllm.engine.tools.register import engines_before, registered_folders, warning_about_engines

#: What a line of the diagnosis begins with, by its severity.
_MARKS = {Severity.GOOD: "ok", Severity.NOTE: "note", Severity.ERROR: "WRONG"}


def _symptom(severity: Severity, subject: str, text: str, remedy: str = "") -> Finding:
    """Return one thing that was checked."""
    return Finding(severity=severity, field=subject, what=text, remedy=remedy)


def _finding(
    subject: str, is_good: bool, good: str, failure: str, remedy: str, level: Severity = Severity.ERROR
) -> Finding:
    """Return one thing that was checked: good, or of this level with its remedy."""
    return _symptom(Severity.GOOD, subject, good) if is_good else _symptom(level, subject, failure, remedy)


#: The programs that are needed: subject, names, level and text where all of them are missing, remedy.
_TOOLS = (
    ("bash", ("bash",), Severity.ERROR, "not found on PATH: no run.sh can be run", "install bash"),
    (
        "compiler",
        ("cc", "gcc", "clang"),
        Severity.NOTE,
        "no C compiler on PATH: vLLM needs one on GPUs, and pip for packages that are published as source",
        "install gcc, for example: apt-get install gcc",
    ),
    ("git", ("git",), Severity.NOTE, "not found on PATH: sources cannot be fetched", "install git"),
)


def print_diagnosis(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Print all symptoms, each with its remedy; return cmind's result, 1 when something is wrong."""
    symptoms = list(diagnose(automation.cmind, Path(automation.path).parents[1]))
    wrong = sum(symptom.severity is Severity.ERROR for symptom in symptoms)
    if i.get("out") != "json":
        width = max(len(symptom.field) for symptom in symptoms)
        for symptom in symptoms:
            print(f"{_MARKS[symptom.severity]:<5}  {symptom.field:<{width}}  {symptom.what}")
            if symptom.remedy:
                print(f"{'':<5}  {'':<{width}}  remedy: {symptom.remedy}")
    data = [
        {"level": _MARKS[each.severity], "subject": each.field, "text": each.what, "remedy": each.remedy}
        for each in symptoms
    ]
    result: dict[str, Any] = {"return": 0, "symptoms": data}
    if wrong:
        failure = CmError(
            f"{wrong} of {len(symptoms)} checks failed", remedy="each line marked WRONG has its own remedy"
        )
        result |= {"return": failure.exit_code, "error": str(failure)}
    return result


def diagnose(cmind: Any, checkout: Path) -> Iterator[Finding]:
    """Yield the symptoms of Python, tools, home, repositories, engines, scripts, packages, disk and cache."""
    home = Path(cmind.repos_path)
    catalogue = Catalogue(cmind)
    scripts = catalogue.all()
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "python": lambda: [_python()],
        "tools": _tools,
        "home": lambda: [_home(home)],
        "repositories": lambda: _repositories(home),
        "index": lambda: [_index(home)],
        "engine": lambda: [_engines(checkout, home)],
        "scripts": lambda: _scripts(catalogue, scripts),
        "packages": lambda: [_packages(checkout)],
        "disk": lambda: [_disk(home, scripts)],
        "cache": lambda: _cache(Cache(cmind).root),
    }
    for subject, check in checks.items():
        try:
            yield from check()
        except CmError as error:
            yield _symptom(Severity.ERROR, subject, error.what, error.remedy)
        except OSError as error:
            yield _symptom(
                Severity.ERROR,
                subject,
                f"{error.filename or home} cannot be used: {error.strerror}",
                "change its permissions",
            )


def _python() -> Finding:
    """Return a finding: whether the Python that runs `cm` can make environments with pip."""
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"{version} at {sys.executable}"
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        return _symptom(
            Severity.ERROR,
            "python",
            f"{text} has no venv module with pip, which the installation of vLLM needs",
            "install the package python3-venv of your system",
        )
    if sys.prefix == sys.base_prefix:
        return _symptom(
            Severity.NOTE,
            "python",
            f"{text} is not a virtual environment: packages are installed into the system's Python",
            "python3 -m venv ~/cm && ~/cm/bin/pip install cmind, then run cm from ~/cm/bin",
        )
    return _symptom(Severity.GOOD, "python", text)


def _tools() -> Iterator[Finding]:
    for subject, names, level, missing, remedy in _TOOLS:
        program = next(filter(None, map(shutil.which, names)), "")
        yield _finding(subject, bool(program), program, missing, remedy, level)


def _home(home: Path) -> Finding:
    """Return a finding: whether the CM home can be written to."""
    return _finding(
        "home",
        os.access(home, os.W_OK | os.X_OK),
        str(home),
        f"no permission to write to {home}",
        "change its permissions, or set CM_REPOS to another folder",
    )


def _repositories(home: Path) -> list[Finding]:
    """Return a finding for each registered folder that holds no CM repository."""
    listed = registered_folders(home)
    gone = [entry for entry in listed if not any((entry / name).is_file() for name in ("cmr.yaml", "cmr.json"))]
    return [
        _symptom(
            Severity.ERROR,
            "repositories",
            f"{entry} holds no CM repository (cmr.yaml)",
            f"restore it, or remove its line from {home / 'repos.json'} and run: cm reindex repo",
        )
        for entry in gone
    ] or [_symptom(Severity.GOOD, "repositories", f"{len(listed)} registered")]


def _index(home: Path) -> Finding:
    """Return a finding: whether cmind's index can be read and names folders that exist."""
    path = home / "index.json"
    try:
        index = json.loads(path.read_bytes())
    except FileNotFoundError:
        return _symptom(Severity.NOTE, "index", "does not exist yet: the next command creates it")
    except ValueError as error:
        return _symptom(Severity.ERROR, "index", f"{path} is not JSON: {error}", f"rm {path}")
    try:
        paths = {str(artifact["path"]) for artifacts in index.values() for artifact in artifacts.values()}
    except (AttributeError, TypeError, KeyError):
        return _symptom(Severity.ERROR, "index", f"{path} is not an index of CM", f"rm {path}")
    gone = sorted(path for path in paths if not Path(path).is_dir())
    return _finding(
        "index",
        not gone,
        f"{len(paths)} artifacts",
        f"{len(gone)} of {len(paths)} indexed folders no longer exist, for example {''.join(gone[:1])}",
        "cm reindex repo",
        Severity.NOTE,
    )


def _engines(checkout: Path, home: Path) -> Finding:
    """Return a finding: whether this engine is the first one of the CM home."""
    others = engines_before(checkout, home)
    return _finding(
        "engine",
        not others,
        str(checkout),
        f"the script engine of {''.join(map(str, others[:1]))} is registered before this one",
        " ".join(warning_about_engines(checkout, home).splitlines()[1:]),
    )


def _scripts(catalogue: Catalogue, scripts: list[ScriptMeta]) -> list[Finding]:
    return [
        _symptom(Severity.NOTE, "scripts", str(finding), "run: cm lint script")
        for finding in Linter(catalogue).duplicates()
    ] or [_symptom(Severity.GOOD, "scripts", f"{len(scripts)}, all UIDs are different")]


def _packages(checkout: Path) -> Finding:
    """Return a finding: which packages of requirements.txt the Python that runs `cm` lacks."""
    path = checkout / "requirements.txt"
    missing = missing_of(path) if path.is_file() else []
    return _finding(
        "packages",
        not missing,
        f"all packages of {path} are installed",
        f"{len(missing)} packages of {path} are not installed; the first recipe that needs them installs them",
        f"{sys.executable} -m pip install -r {path}",
        Severity.NOTE,
    )


def _disk(home: Path, scripts: list[ScriptMeta]) -> Finding:
    """Return a finding: whether the disk has room for the largest thing that a script says it brings."""
    free = shutil.disk_usage(home).free
    largest, name = max(
        (
            (bring.disk_bytes, script.alias)
            for script in scripts
            for *_, layer in layers_of(script)
            for bring in layer.brings
        ),
        default=(0, ""),
    )
    text = f"{size_text(free)} free in {home}"
    return _finding(
        "disk",
        free >= largest,
        text,
        f"{text}; {name} alone needs {size_text(largest)}",
        "free space there, or set CM_REPOS to a folder on another disk",
    )


def _cache(root: str) -> list[Finding]:
    """Return a finding for each entry of the cache that is broken, unreadable or unfinished.

    Else one that all are whole.
    """
    entries = list(finished_entries(root))
    unfinished = (
        _symptom(
            Severity.NOTE,
            "cache",
            f"{folder} is unfinished ({size_text(size_of(folder))}): a run is making it now, or was killed",
            f"if no run is active: rm -r {folder}",
        )
        for folder in leftovers(Path(root))
    )
    faults = [*filter(None, map(_fault_of_entry, entries)), *_unreadable_entries(Path(root)), *unfinished]
    sound = _symptom(Severity.GOOD, "cache", count_in_words(entries, sum(size_of(entry.folder) for entry in entries)))
    return faults or [sound]


def _fault_of_entry(entry: Entry) -> Finding | None:
    """Return the symptom of an entry that cannot be used; None for a sound one."""
    try:
        entry.result()
    except Damaged as damage:
        fault = f"is damaged: {damage} is missing or was changed; the next run makes it again"
        if not Path(entry.folder, STATE_FILE).exists():
            fault = "has no result and is not used"
        remedy = f"cm rm cache {os.path.basename(entry.folder)} -f"
        return _symptom(Severity.NOTE, "cache", f"{entry.folder} ({entry.script}) {fault}", remedy)
    return None


def _unreadable_entries(root: Path) -> Iterator[Finding]:
    """Yield the entries whose meta is no object in JSON: cmind's own commands on the cache fail on them."""
    yield from (
        _symptom(
            Severity.ERROR,
            "cache",
            f"{path} is not JSON: cm show cache and cm find cache fail; the next run makes the entry again",
            f"rm -r {path.parent}",
        )
        for path in sorted(root.glob("[!.]*/_cm.json"))
        if json_mapping(path) is None
    )
