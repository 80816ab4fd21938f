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

Ratios are to `python -c pass` of the same round. Bytecode of the package is there, as after any first run; with
PYTHONDONTWRITEBYTECODE=1 what is loaded by its path alone has none. Memory is the largest resident set.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import CM, Figure, arguments, figure, interleaved, left_out, ratios, report

ROOT = Path(__file__).resolve().parents[1]
#: The most that bytecode not written may cost, and the most memory above that of `python -c pass`.
NO_BYTECODE, MEMORY_MIB = 1.1, 40
FIRST_USE = 1.2
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


@dataclass(frozen=True)
class Case:
    """A command line of `cm`, and the most that it may take as a multiple of `python -c pass`."""

    title: str
    words: tuple[str, ...]
    limit: float
    fails: bool = False


@dataclass(frozen=True)
class Taken:
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
VERSION = ("version",)


class Scripts:
    """A CM repository of synthetic scripts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        folder.mkdir(parents=True)
        (folder / "cmr.yaml").write_text('alias: synthetic\nuid: "00000000000000f1"\n')

    def add(self, tags: str, meta: str = "", shell: str = "") -> None:
        """Write a script; its alias is its tags joined by dashes."""
        self._count += 1
        alias = tags.replace(",", "-")
        folder = self.folder / "script" / alias
        folder.mkdir(parents=True)
        (folder / "_cm.yaml").write_text(
            f'alias: {alias}\nuid: "{self._count:015x}a"\nautomation_alias: script\nautomation_uid: 5b4e0237da074764\n'
            f"tags:\n{''.join(f'- {tag}{chr(10)}' for tag in tags.split(','))}{meta}"
        )
        if shell:
            (folder / "run.sh").write_text(shell)

    def fill(self, until: int) -> Scripts:
        """Add scripts that nothing asks for, of the size of public ones, until there are so many."""
        for number in range(self._count, until):
            self.add(f"filler,of-{number // 10},number-{number}", _FILLER)
        return self


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


def some_scripts(folder: Path, count: int) -> Path:
    """Write the scripts of all cases but those of many, `count` in all."""
    scripts = Scripts(folder)
    scripts.add("bench,cached", "cache: true\nnew_env_keys: [CM_BENCH]\n", "echo CM_BENCH=1 > tmp-run-env.out\n")
    for kind, shell in (("meta", ""), ("shell", "true\n")):
        for number in range(DEPENDENCIES):
            scripts.add(f"bench,{kind}-{number}", f"env:\n  CM_{kind.upper()}_{number}: 'yes'\n", shell)
        scripts.add(
            f"bench,all-{kind}",
            "deps:\n" + "".join(f"- tags: bench,{kind}-{number}\n" for number in range(DEPENDENCIES)),
        )
    return scripts.fill(count).folder


def engine_of_cm4mlops(checkout: Path, folder: Path) -> Path:
    """Copy the engine of cm4mlops, and of its scripts only detect-os: the others would answer, too."""
    shutil.copytree(checkout / "automation", folder / "automation")
    shutil.copytree(checkout / "script" / "detect-os", folder / "script" / "detect-os")
    shutil.copy(checkout / "cmr.yaml", folder)
    return folder


class Home:
    """A CM home with an engine's repository and the synthetic one."""

    def __init__(self, folder: Path, engine: Path, scripts: Path) -> None:
        self.folder = folder
        self.home = folder / "CM"
        self.home.mkdir(parents=True)
        (folder / "work").mkdir()
        (self.home / "repos.json").write_text(json.dumps([str(engine), str(scripts)]))

    def cm(self, words: Sequence[str], *, fails: bool = False, extra: Mapping[str, str] | None = None) -> Taken:
        """Time one `cm`."""
        return self.timed([str(CM), *words], fails=fails, extra=extra)

    def timed(self, words: Sequence[str], *, fails: bool = False, extra: Mapping[str, str] | None = None) -> Taken:
        """Time one process. Raises RuntimeError when it ends otherwise than it should."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("CM_") and key != "PYTHONDONTWRITEBYTECODE"
        }
        env = {**kept, "CM_REPOS": str(self.home), **(extra or {})}
        done = subprocess.run(
            [sys.executable, "-ISc", _TIMED, *words],
            cwd=self.folder / "work",
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds, kib, status = done.stdout.split()
        if bool(int(status)) is not fails:
            raise RuntimeError(f"{' '.join(words)} ended with {status}:\n{done.stderr}")
        return Taken(float(seconds), int(kib) / 1024)

    def forget(self) -> None:
        """Remove what the next start would find indexed."""
        for path in self.home.iterdir():
            if path.is_file() and path.name != "repos.json":
                path.unlink()

    def first(self, words: Sequence[str]) -> Taken:
        """Time one `cm` in a home that was never used."""
        self.forget()
        return self.cm(words)


Cases = dict[str, Callable[[], Taken]]


def homes_of(folder: Path, engines: Mapping[str, Path], scripts: Path) -> dict[str, Home]:
    """Make a home with the scripts for each engine."""
    return {name: Home(folder / name, engine, scripts) for name, engine in engines.items()}


def compared(cases: Mapping[str, Case], homes: Mapping[str, Home], rounds: int, among: str) -> Iterator[Figure]:
    """Measure each case in each home, ours without bytecode, too, beside Python's and cmind's own start."""
    ours = homes["ours"]
    plain = functools.partial(ours.timed, [sys.executable, "-c", "pass"])
    commands: Cases = {"pass": plain, "version": functools.partial(ours.cm, VERSION)}
    for name, case in cases.items():
        for engine, home in homes.items():
            commands[f"{name} {engine}"] = functools.partial(home.cm, case.words, fails=case.fails)
        commands[f"{name} no bytecode"] = functools.partial(
            ours.cm, case.words, fails=case.fails, extra={"PYTHONDONTWRITEBYTECODE": "1"}
        )
    for command in commands.values():  # indexes the home, and fills the cache
        command()
    measured = interleaved(commands, rounds)
    floor = f"cmind's own start, {among}"
    yield figure(f"python -c pass, beside {among}", [taken.seconds * 1e3 for taken in measured["pass"]], "ms")
    yield figure(floor, over(measured["version"], measured["pass"]), "x")
    yield figure(f"{floor}: memory", above(measured["version"], measured["pass"]), "MiB")
    for name, case in cases.items():
        own = measured[f"{name} ours"]
        yield figure(case.title, over(own, measured["pass"]), "x", at_most=case.limit)
        yield figure(
            f"{case.title}: without bytecode / with",
            over(measured[f"{name} no bytecode"], own),
            "x",
            at_most=NO_BYTECODE,
        )
        yield figure(f"{case.title}: memory", above(own, measured["pass"]), "MiB", at_most=MEMORY_MIB)
        if "cm4mlops" in homes:
            yield figure(f"{case.title}: cm4mlops", over(measured[f"{name} cm4mlops"], measured["pass"]), "x")


def first(folder: Path, engines: Mapping[str, Path], *, count: int, rounds: int) -> Iterator[Figure]:
    """Measure the first command in a home of many scripts; cmind indexes them before any engine is reached."""
    scripts = Scripts(folder / "scripts").fill(count).folder
    homes = homes_of(folder, engines, scripts)
    commands: Cases = {"indexing": functools.partial(homes["ours"].first, VERSION)}
    commands |= {name: functools.partial(home.first, SEARCH.words) for name, home in homes.items()}
    measured = interleaved(commands, rounds)
    title = "first use, 10,000 scripts"
    yield figure("cmind's own indexing of 10,000 scripts", [taken.seconds for taken in measured["indexing"]], "s")
    yield figure(
        f"{title}: ours / cmind's own indexing", over(measured["ours"], measured["indexing"]), "x", at_most=FIRST_USE
    )
    yield figure(
        f"{title}: memory above cmind's own indexing",
        above(measured["ours"], measured["indexing"]),
        "MiB",
        at_most=MEMORY_MIB,
    )
    if "cm4mlops" in homes:
        yield figure(f"{title}: cm4mlops / cmind's own indexing", over(measured["cm4mlops"], measured["indexing"]), "x")


def over(some: Sequence[Taken], other: Sequence[Taken]) -> list[float]:
    """Return the ratio of the times of each round."""
    return ratios([taken.seconds for taken in some], [taken.seconds for taken in other])


def above(some: Sequence[Taken], other: Sequence[Taken]) -> list[float]:
    """Return how many MiB more the one took in each round."""
    return [a.mib - b.mib for a, b in zip(some, other, strict=True)]


def figures_of(
    names: Sequence[str], engines: Mapping[str, Path], folder: Path, *, rounds: int, first_rounds: int, share: float
) -> Iterator[Figure]:
    """Yield the figures of the cases named."""
    many = int(MANY_SCRIPTS * share)
    if few := [name for name in names if name in CASES]:
        homes = homes_of(folder / "some", engines, some_scripts(folder / "some" / "scripts", SCRIPTS))
        yield from compared({name: CASES[name] for name in few}, homes, rounds, f"{SCRIPTS:,} scripts")
    if "search" in names:
        homes = homes_of(folder / "many", engines, Scripts(folder / "many" / "scripts").fill(many).folder)
        yield from compared({"search": SEARCH}, homes, rounds, f"{many:,} scripts")
    if "first" in names:
        yield from first(folder / "first", engines, count=many, rounds=first_rounds)


def main() -> int:
    """Print the table."""
    description = "the script engine beside Python's and cmind's own start, and beside cm4mlops"
    parser = arguments(description, rounds=9, parts=(*CASES, "search", "first"))
    parser.add_argument("--first-rounds", type=int, default=2, help="rounds of the case first (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round, and a hundredth of 10,000 scripts")
    options = parser.parse_args()
    rounds, first_rounds = (1, 1) if options.quick else (options.rounds, options.first_rounds)
    with tempfile.TemporaryDirectory(prefix="engine-benchmark-") as temporary:
        folder = Path(temporary)
        engines = {"ours": ROOT}
        if checkout := os.environ.get("CM4MLOPS"):
            engines["cm4mlops"] = engine_of_cm4mlops(Path(checkout), folder / "cm4mlops")
        else:
            left_out("cm4mlops", "CM4MLOPS=DIR names a checkout of it")
        return report(
            figures_of(
                options.only,
                engines,
                folder,
                rounds=rounds,
                first_rounds=first_rounds,
                share=0.01 if options.quick else 1,
            ),
            options.json,
        )


if __name__ == "__main__":
    raise SystemExit(main())
