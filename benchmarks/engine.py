"""The script engine, timed as whole processes: `python benchmarks/engine.py [--only=PART,…] [--json=FILE]`.

Each case is a command line of the real `cm`, in a CM home of its own with a repository of synthetic scripts, timed in
turn with `python -c pass` and with `cm version`, which is cmind's own start and so the floor of every case. With
CM4MLOPS naming a checkout of mlcommons/cm4mlops, its engine gets the same scripts in a home of its own. The cases:

    cached   a script that the cache answers
    detect   detect,os, as each repository has it
    meta     a script with 100 dependencies, none of which runs anything
    shell    a script with 100 dependencies, each with a run.sh
    unknown  tags that none of 300 scripts has
    search   cm find script among 10,000 scripts
    first    the first command in a home of 10,000 scripts, beside what cmind's own indexing takes

Ratios are to `python -c pass` of the same round. Bytecode of the package is there, as after any first run. Memory is
the largest resident set.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from figures import CM, Figure, arguments, figure, interleaved, left_out, ratios, report

ROOT = Path(__file__).resolve().parents[1]
#: The most memory above that of `python -c pass`, and the longest first use beside cmind's own indexing.
MEMORY_MIB, FIRST_USE = 40, 1.2
SCRIPTS, MANY_SCRIPTS, DEPENDENCIES = 300, 10_000, 100

#: Starts argv[1:] and prints its seconds, KiB and exit code. The resident set of a process counts that of the process
#: that started it until then: this one is smaller than any that is measured.
_TIMED = """
import os, sys, time
null = os.open(os.devnull, os.O_RDWR)
begin = time.perf_counter()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
_, status, used = os.wait4(child, 0)
print(time.perf_counter() - begin, used.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


class Case(NamedTuple):
    """A command line of `cm`, and the most that it may take as a multiple of `python -c pass`."""

    title: str
    words: tuple[str, ...]
    limit: float
    fails: bool = False


class Taken(NamedTuple):
    """The time and memory that a process took."""

    seconds: float
    mib: float


CASES = {
    "cached": Case("cached script hit", ("run", "script", "--tags=bench,cached", "--quiet"), 6.5),
    "detect": Case("detect,os", ("run", "script", "--tags=detect,os", "--quiet"), 9),
    "meta": Case("100 dependencies, meta only", ("run", "script", "--tags=bench,all-meta", "--quiet"), 9),
    "shell": Case("100 dependencies, each with run.sh", ("run", "script", "--tags=bench,all-shell", "--quiet"), 30),
    "unknown": Case("unknown tag, 300 scripts", ("run", "script", "--tags=bench,unheard-of"), 8, fails=True),
}
SEARCH = Case("tag search, 10,000 scripts, warm", ("find", "script", "--tags=filler,of-7"), 15)

#: About as long as the median of the public metas.
_FILLER = """\
category: Benchmark
cache: true
default_env:
  CM_FILLER_ONE: 'yes'
  CM_FILLER_TWO: two
input_mapping:
  one: CM_FILLER_ONE
  two: CM_FILLER_TWO
new_env_keys:
- CM_FILLER_*
deps:
- tags: detect,os
- tags: get,python3
  names: [python, python3]
  skip_if_env:
    CM_FILLER_ONE: ['no']
variations:
  small:
    group: size
    default: true
    env:
      CM_FILLER_SIZE: small
  large:
    group: size
    env:
      CM_FILLER_SIZE: large
  with-python:
    deps:
    - tags: get,generic-python-lib,_package.numpy
      names: [numpy]
"""


def write_script(repository: Path, tags: str, meta: str = "", shell: str = "") -> None:
    """Write a script; its alias is its tags joined by dashes."""
    alias = tags.replace(",", "-")
    folder = repository / "script" / alias
    folder.mkdir(parents=True)
    (folder / "_cm.yaml").write_text(
        f'alias: {alias}\nuid: "{sha256(alias.encode()).hexdigest()[:16]}"\nautomation_alias: script\n'
        f"automation_uid: 5b4e0237da074764\ntags: [{tags}]\n{meta}"
    )
    if shell:
        (folder / "run.sh").write_text(shell)


def scripts_of(repository: Path, count: int) -> Path:
    """Write a CM repository of the scripts of all cases and, to `count`, of ones that nothing asks for."""
    write_script(
        repository, "bench,cached", "cache: true\nnew_env_keys: [CM_BENCH]\n", "echo CM_BENCH=1 > tmp-run-env.out\n"
    )
    for kind, shell in (("meta", ""), ("shell", "true\n")):
        for number in range(DEPENDENCIES):
            write_script(repository, f"bench,{kind}-{number}", f"env:\n  CM_{kind.upper()}_{number}: 'yes'\n", shell)
        dependencies = "".join(f"- tags: bench,{kind}-{number}\n" for number in range(DEPENDENCIES))
        write_script(repository, f"bench,all-{kind}", f"deps:\n{dependencies}")
    for number in range(count - 2 * DEPENDENCIES - 3):
        write_script(repository, f"filler,of-{number // 10},number-{number}", _FILLER)
    (repository / "cmr.yaml").write_text('alias: synthetic\nuid: "00000000000000f1"\n')
    return repository


class Home:
    """A CM home with an engine's repository and the synthetic one."""

    def __init__(self, folder: Path, engine: Path, scripts: Path) -> None:
        self.home = folder / "CM"
        self.work = folder / "work"
        self.home.mkdir(parents=True)
        self.work.mkdir()
        (self.home / "repos.json").write_text(json.dumps([str(engine), str(scripts)]))

    def cm(self, words: Sequence[str], *, fails: bool = False) -> Taken:
        """Time one `cm`."""
        return self.time_process([str(CM), *words], fails=fails)

    def time_process(self, words: Sequence[str], *, fails: bool = False) -> Taken:
        """Time one process. Raises RuntimeError when it ends otherwise than it should."""
        left = "PYTHONDONTWRITEBYTECODE"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CM_") and key != left}
        done = subprocess.run(
            [sys.executable, "-ISc", _TIMED, *words],
            cwd=self.work,
            env={**kept, "CM_REPOS": str(self.home)},
            capture_output=True,
            text=True,
            check=True,
        )
        seconds, kib, status = done.stdout.split()
        if bool(int(status)) is not fails:
            raise RuntimeError(f"{' '.join(words)} ended with {status}:\n{done.stderr}")
        return Taken(float(seconds), int(kib) / 1024)

    def time_first_use(self, words: Sequence[str]) -> Taken:
        """Time one `cm` in a home in which nothing is indexed."""
        for path in self.home.iterdir():
            if path.is_file() and path.name != "repos.json":
                path.unlink()
        return self.cm(words)


def comparison(cases: Mapping[str, Case], homes: Mapping[str, Home], rounds: int, among: str) -> Iterator[Figure]:
    """Measure each case in each home, beside Python's and cmind's own start."""
    ours = homes["ours"]
    commands: dict[str, Callable[[], Taken]] = {
        "pass": partial(ours.time_process, [sys.executable, "-c", "pass"]),
        "version": partial(ours.cm, ["version"]),
    }
    for name, case in cases.items():
        for engine, home in homes.items():
            commands[f"{name} {engine}"] = partial(home.cm, case.words, fails=case.fails)
    for command in commands.values():  # indexes the home, and fills the cache
        command()
    measured = interleaved(commands, rounds)
    plain, floor = measured["pass"], f"cmind's own start, {among}"
    yield from (
        figure(f"python -c pass, beside {among}", [taken.seconds * 1e3 for taken in plain], "ms"),
        figure(floor, time_ratios(measured["version"], plain), "x"),
        figure(f"{floor}: memory", memory_differences(measured["version"], plain), "MiB"),
    )
    for name, case in cases.items():
        own = measured[f"{name} ours"]
        yield figure(case.title, time_ratios(own, plain), "x", at_most=case.limit)
        yield figure(f"{case.title}: memory", memory_differences(own, plain), "MiB", at_most=MEMORY_MIB)
        if "cm4mlops" in homes:
            yield figure(f"{case.title}: cm4mlops", time_ratios(measured[f"{name} cm4mlops"], plain), "x")


def first_use(homes: Mapping[str, Home], rounds: int) -> Iterator[Figure]:
    """Measure the first command in a home of many scripts; cmind indexes them before any engine is reached."""
    commands = {"indexing": partial(homes["ours"].time_first_use, ["version"])}
    commands |= {name: partial(home.time_first_use, SEARCH.words) for name, home in homes.items()}
    measured = interleaved(commands, rounds)
    yield figure("cmind's own indexing of 10,000 scripts", [taken.seconds for taken in measured["indexing"]], "s")
    for name in homes:
        title = f"first use, 10,000 scripts: {name} / cmind's own indexing"
        limit = FIRST_USE if name == "ours" else None
        yield figure(title, time_ratios(measured[name], measured["indexing"]), "x", at_most=limit)


def time_ratios(some: Sequence[Taken], other: Sequence[Taken]) -> list[float]:
    """Return the ratio of the times of each round."""
    return ratios([taken.seconds for taken in some], [taken.seconds for taken in other])


def memory_differences(some: Sequence[Taken], other: Sequence[Taken]) -> list[float]:
    """Return how many MiB more the one took in each round."""
    return [a.mib - b.mib for a, b in zip(some, other, strict=True)]


def figures_of(names: Sequence[str], folder: Path, *, rounds: int, many: int) -> Iterator[Figure]:
    """Yield the figures of the cases named, among SCRIPTS scripts and among `many`."""
    engines = {"ours": ROOT}
    if named := os.environ.get("CM4MLOPS"):
        checkout, engines["cm4mlops"] = Path(named), folder / "cm4mlops"
        shutil.copytree(checkout / "automation", engines["cm4mlops"] / "automation")
        # Of its scripts this one alone: the others would answer, too.
        shutil.copytree(checkout / "script" / "detect-os", engines["cm4mlops"] / "script" / "detect-os")
        shutil.copy(checkout / "cmr.yaml", engines["cm4mlops"])
    else:
        left_out("cm4mlops", "CM4MLOPS=DIR names a checkout of it")

    def homes(name: str, count: int) -> dict[str, Home]:
        scripts = scripts_of(folder / f"scripts for {name}", count)
        return {engine: Home(folder / name / engine, path, scripts) for engine, path in engines.items()}

    if few := {name: CASES[name] for name in names if name in CASES}:
        yield from comparison(few, homes("some", SCRIPTS), rounds, f"{SCRIPTS:,} scripts")
    if "search" in names:
        yield from comparison({"search": SEARCH}, homes("many", many), rounds, f"{many:,} scripts")
    if "first" in names:
        yield from first_use(homes("first", many), min(rounds, 2))


def main() -> int:
    """Print the table."""
    description = "the script engine beside Python's and cmind's own start, and beside cm4mlops"
    parser = arguments(description, rounds=9, parts=(*CASES, "search", "first"))
    parser.add_argument("--quick", action="store_true", help="one round, and few scripts")
    options = parser.parse_args()
    rounds, many = (1, SCRIPTS) if options.quick else (options.rounds, MANY_SCRIPTS)
    with tempfile.TemporaryDirectory(prefix="engine-benchmark-") as folder:
        return report(figures_of(options.only, Path(folder), rounds=rounds, many=many), options.json)


if __name__ == "__main__":
    raise SystemExit(main())
