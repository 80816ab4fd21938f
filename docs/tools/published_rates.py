"""Print the rates of a round's published results that were measured with vLLM, as rows of published_rates.yaml.

    python docs/tools/published_rates.py v4.1=GIT_DIRECTORY v5.1=GIT_DIRECTORY > published_rates.yaml

Each directory is that of mlcommons/inference_results_ROUND. A valid result counts if its system description names vLLM,
all its accelerators are of one kind that the table of known accelerators has, its benchmark is one of this project's,
the data type of its weights is stated (fp32 is what a description says that nobody filled in), and it is not one of
published_runs/. Of the two variants of a benchmark with equal rates one is kept.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

from cm4vllm.campaign.published.published_results import published_runs
from cm4vllm.records.known_hardware import accelerator, accelerators_named, products_named
from cm4vllm.rules import benchmark_names, round_names

_SUMMARY = re.compile(
    r"(open|closed)/([^/]+)/results/([^/]+)/([^/]+)/([^/]+)/performance/run_1/mlperf_log_summary\.txt"
)
_RATE = re.compile(r"^(?:Samples per second|Completed samples per second)\s*: ([\d.]+)$", re.MULTILINE)
_OWN = {(run.round, run.submitter.replace(" ", ""), run.system) for run in published_runs().values()}
_HEAD = """\
# Rates in samples/s of published results that were measured with vLLM, beside those of published_runs/; made by
# docs/tools/published_rates.py. Round, division, submitter, system, accelerator, how many of them, benchmark, data type
# of the weights, scenario, samples/s (queries/s) of LoadGen's summary."""
_NOT_STATED = ("fp32", "")
_VALID = re.compile(r"^Result is : VALID$", re.MULTILINE)


class Repository:
    """The newest commit in a git directory."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.commit = self._git("rev-parse", "HEAD").strip()
        self.paths = self._git("ls-tree", "-r", "--name-only", "HEAD").splitlines()

    def read(self, path: str) -> str:
        """Return the text of a file."""
        return self._git("show", f"HEAD:{path}")

    def _git(self, *words: str) -> str:
        done = subprocess.run(["git", "-C", self._folder, *words], capture_output=True, check=True)
        return done.stdout.decode(errors="replace")


def rows(round_: str, repository: Repository) -> Iterator[list[str]]:
    """Yield the rows of a round's results."""
    known = set(benchmark_names(round_))
    systems: dict[tuple[str, ...], dict[str, str] | None] = {}
    for path in repository.paths:
        match = _SUMMARY.fullmatch(path)
        if match is None:
            continue
        division, submitter, system, name, scenario = match.groups()
        benchmark = name.replace("_", ".")
        if benchmark not in known:
            continue
        key = (division, submitter, system)
        if (round_, submitter, system) in _OWN:
            continue
        if key not in systems:
            systems[key] = _system(repository, key)
        if (described := systems[key]) is None:
            continue
        text = repository.read(path)
        rate = _RATE.search(text)
        if rate is None or not _VALID.search(text):
            continue
        weights = _weights(repository, (division, submitter, system, name, scenario))
        if weights in _NOT_STATED:
            continue
        row = (round_, division, submitter, system, described["accelerator"], described["count"])
        yield [*row, benchmark, weights, scenario.capitalize(), rate[1]]


def _weights(repository: Repository, key: tuple[str, ...]) -> str:
    """Return the data type of the weights, by the first description in the folder of measurements."""
    division, submitter, system, name, scenario = key
    folder = f"{division}/{submitter}/measurements/{system}/{name}/{scenario}/"
    for path in repository.paths:
        if path.startswith(folder) and path.endswith(".json") and path.count("/") == folder.count("/"):
            said = str(json.loads(repository.read(path)).get("weight_data_types", "")).lower()
            if (word := re.search(r"[a-z]+\d+\w*", said)) is not None:
                return word.group()
    return ""


def _system(repository: Repository, key: tuple[str, ...]) -> dict[str, str] | None:
    """Return accelerator and number of a system that serves with vLLM; None for another one."""
    division, submitter, system = key
    path = f"{division}/{submitter}/systems/{system}.json"
    if path not in repository.paths:
        return None
    text = repository.read(path)
    said = json.loads(text)
    if "vllm" not in (text + system).lower():
        return None
    name = str(said.get("accelerator_model_name", ""))
    row = accelerator(name)
    if row is None:
        products = products_named(name)
        candidates = [row for product in products for row in accelerators_named(product)]
        row = candidates[0] if len({candidate.title for candidate in candidates}) == 1 else None
    count = int(said.get("accelerators_per_node") or 0) * int(said.get("number_of_nodes") or 1)
    return {"accelerator": row.title, "count": str(count)} if row is not None and count else None


def _without_variants(every: list[list[str]]) -> Iterator[list[str]]:
    """Yield the rows, of those that differ in the benchmark's variant alone (-99 and -99.9) the stricter one."""
    kept = {(*row[:6], row[6].removesuffix(".9"), *row[7:]) for row in every if row[6].endswith("-99.9")}
    yield from (row for row in every if row[6].endswith("-99.9") or tuple(row) not in kept)


def main(rounds: list[str]) -> None:
    """Print the rows of the rounds."""
    print(_HEAD)
    for word in rounds:
        round_, _, folder = word.partition("=")
        if round_ not in round_names():
            sys.exit(f"{round_} is no round")
        repository = Repository(folder)
        print(f"# mlcommons/inference_results_{round_} at {repository.commit}")
        for row in _without_variants(list(rows(round_, repository))):
            print(f"- [{', '.join(row)}]")


if __name__ == "__main__":
    main(sys.argv[1:])
