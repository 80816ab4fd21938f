"""A run of the reference client, unmodified: started under a supervisor, followed, and judged by the files it wrote."""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml

from cm4vllm.common.bounded_documents import object_of, read_json, read_object
from cm4vllm.common.errors import CmError, InstallError, RunFailed, RunIncomplete, ServerDied
from cm4vllm.common.folders.owned_folders import begun_folder, write_noted
from cm4vllm.common.git.git_objects import added_files, changed_files, objects_of
from cm4vllm.common.programs.processes import exit_in_words, last_lines
from cm4vllm.common.progress import step
from cm4vllm.common.records import Record
from cm4vllm.endpoints.client_config import ClientRun, client_document
from cm4vllm.endpoints.events import failed_samples
from cm4vllm.results.endpoints.endpoints_harness import SCORES, SUMMARY
from cm4vllm.serving.supervision.death_reasons import awaited_reason
from cm4vllm.serving.supervision.own_supervisors import end_orphans
from cm4vllm.serving.supervisor import start_supervised

EVENTS = "events.jsonl"
#: The samples that the client issued in each phase, by the phase's name. An accuracy run has the name of its dataset.
_ISSUED = "sample_idx_map.json"
#: The client ends its services in a second; what is left then is killed.
_GRACE_S = 10.0
_LOOK_S = 0.5
#: The end of a server is known to its supervisor this long after it, and to us.
_NOTICED_S = 2.0
#: The exit status of a client that is interrupted before its run.
_INTERRUPTED = 130
_AGAIN = "run the same command again: it repeats this run"
#: Reasons of failed requests that are named, the most frequent ones first.
_REASONS = 3
#: What the client prints where its services or workers do not start in time, as on a machine with other load.
_NOT_READY = re.compile(r"^.*(?:signals received within|failed to initialize within) .*$", re.MULTILINE)
#: The progress bar of the client: samples of all.
_PROGRESS = re.compile(rb"(\d+)/(\d+) \[")


class ClientAbilities(Record, frozen=True, kw_only=True):
    """Abilities of the client at its commit: whether it computes the steady state inside a run, and the names of its
    rulesets and of its datasets. Names are empty where they are not known.
    """

    steady_state: bool = False
    rulesets: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


class ClientInstallation(Record, frozen=True, kw_only=True):
    """The client: the Python of its environment, its checkout with the commit that it is at, and its abilities."""

    python: str
    checkout: str
    commit: str
    abilities: ClientAbilities = ClientAbilities()


def require_unmodified(client: ClientInstallation) -> None:
    """Raise InstallError where the checkout is at another commit, or a file of it was changed or added."""
    checkout = Path(client.checkout)
    with objects_of(checkout / ".git") as objects:
        commit = objects.commit("HEAD")
        if commit is None or not commit.startswith(client.commit):
            raise InstallError(f"{checkout} is not the reference client at {client.commit}", cause=f"it is at {commit}")
        changed = [*changed_files(checkout, objects, commit), *added_files(checkout, objects, commit)]
    if changed:
        raise InstallError(
            f"the reference client in {checkout} was changed",
            cause=", ".join(changed),
            remedy="the rules ask for the unmodified client; `cm rm cache --tags=get,mlperf,endpoints -f` removes this",
        )


def run_client(
    client: ClientInstallation,
    wanted: ClientRun,
    folder: Path,
    environment: Mapping[str, str],
    *,
    alive: Callable[[], str | None] = lambda: None,
    facts: Callable[[int, int, float], object] | None = None,
) -> None:
    """Run the client with its output in `folder`; `wanted.folder` is the place in it that the client makes.

    What an interrupted run left there is replaced, what a killed one left is kept under a new name. `alive` returns why
    the server has ended, None while it runs; `facts` what a view shows of samples done, all samples, and the seconds
    since the start. Raises ServerDied, RunFailed where the client fails, RunIncomplete where it was killed, ends before
    all samples were answered, is not ready in time, or has requests that failed, which its exit status does not say.
    """
    require_unmodified(client)
    end_orphans()
    target, settings, log = (folder / f"{wanted.folder}{suffix}" for suffix in ("", ".yaml", ".log"))
    argv = [client.python, "-P", "-m", "inference_endpoint.main", "benchmark", "from-config", "-c", settings.name]
    argv += ["--mode", "both" if wanted.accuracy else "perf"]
    with begun_folder(target):
        write_noted(settings, yaml.safe_dump(client_document(wanted), sort_keys=False))
        status = _follow(argv, wanted, folder, environment, alive, facts)
    faults = faults_of(target, wanted, client.commit)
    # The client may end before its server, whose end is known a little later.
    if (faults or status != 0) and (reason := awaited_reason(alive, _NOTICED_S)) is not None:
        raise ServerDied("the server ended during the run", cause=reason, remedy=_AGAIN)
    if not _was_cut_short(target, wanted):
        _require_status(status, log, started=(target / SUMMARY).exists())
    if faults:
        raise RunIncomplete(
            f"the run in {target} is not whole", cause="; ".join(faults), remedy=f"{_AGAIN}; the client's log is {log}"
        )


def _follow(
    argv: list[str],
    wanted: ClientRun,
    folder: Path,
    environment: Mapping[str, str],
    alive: Callable[[], str | None],
    facts: Callable[[int, int, float], object] | None,
) -> int | None:
    """Run the client's program with a supervisor until it ends, and show how far it is.

    Returns its exit status, negative for a signal; None where its supervisor did not see it.
    """
    log, state, spec = (folder / f"{wanted.folder}.{suffix}" for suffix in ("log", "state.json", "spec.json"))
    supervisor = start_supervised(argv, environment, spec=spec, log=log, state=state, grace_s=_GRACE_S, cwd=folder)
    try:
        with step(f"{wanted.samples:,} samples with {wanted.concurrency or 'all'} in flight") as shown:
            while supervisor.poll() is None:
                if reason := alive():
                    raise ServerDied("the server ended during the run", cause=reason, remedy=_AGAIN)
                done, total = _progress(log)
                shown.facts = facts(done, total, time.monotonic() - shown.began) if facts else None
                if total:
                    shown.update(f"{done:,} of {total:,} samples")
                time.sleep(_LOOK_S)
    finally:
        if supervisor.stdin is not None:
            supervisor.stdin.close()
        supervisor.wait()
        end_orphans()
    status: int | None = object_of(state).get("status")
    return status


def faults_of(folder: Path, wanted: ClientRun, commit: str) -> list[str]:
    """Return why the files of a run are not those of the whole run that was wanted, a clause each.

    The client counts a request that failed as completed, too, and scores what is left.
    """
    try:
        summary = read_object(folder / SUMMARY)
        issued, completed, failed = (int(summary[f"n_samples_{name}"]) for name in ("issued", "completed", "failed"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        return [f"{SUMMARY} cannot be read: {error}"]
    faults = []
    if issued != wanted.samples:
        faults.append(f"{issued:,} of {wanted.samples:,} samples were issued")
    if (answered := min(completed, issued - failed)) != issued:
        faults.append(f"{answered:,} of {issued:,} were answered, {failed:,} failed")
    if summary.get("state") != "complete" or summary.get("complete") is not True:
        faults.append(f"it calls itself {summary.get('state')}")
    if (sha := str(summary.get("git_sha"))) and not (commit.startswith(sha) or sha.startswith(commit)):
        faults.append(f"it was made by the client at {sha}, not at {commit}")
    if wanted.accuracy:
        faults += _accuracy_faults(folder, wanted)
    return [*faults, *_failed_requests(folder, wanted)]


def _failed_requests(folder: Path, wanted: ClientRun) -> Iterator[str]:
    """Yield a clause for each run, performance and accuracy, that has failed requests: how many, and the reasons."""
    try:
        failed = failed_samples(folder / EVENTS)
    except CmError as error:
        yield f"{error.what}: {error.cause}"
        return
    scored = _scored_samples(folder, wanted) if failed else set[str]()
    for run, samples in (("performance", failed.keys() - scored), ("accuracy", failed.keys() & scored)):
        if samples:
            reasons = Counter(failed[sample] for sample in samples).most_common(_REASONS)
            words = "; ".join(f"{count:,} times {reason}" for reason, count in reasons)
            yield f"{len(samples):,} requests of the {run} run failed ({words})"


def _accuracy_faults(folder: Path, wanted: ClientRun) -> list[str]:
    """Return why the accuracy run is not whole: after an interrupt the client scores what it has, and ends with 0."""
    issued, faults = len(_scored_samples(folder, wanted)), []
    if issued != wanted.accuracy_samples:
        faults.append(f"{issued:,} of {wanted.accuracy_samples:,} samples of the accuracy run were issued")
    try:
        entries = read_json(folder / SCORES)["accuracy_scores"]
        own = [entry for entry in entries if entry.get("dataset_type") == "accuracy"]
        incomplete = [entry["dataset_name"] for entry in own if entry.get("complete") is not True]
        missing = sum(int(entry["response_counts"]["missing"]) for entry in own)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return [*faults, f"{SCORES} cannot be read: {error}"]
    if not own:
        faults.append(f"{SCORES} has no accuracy run")
    if missing:
        faults.append(f"{missing:,} samples of the accuracy run were not answered")
    return faults + [f"the accuracy run of {name} is not complete" for name in incomplete]


def _scored_samples(folder: Path, wanted: ClientRun) -> set[str]:
    """Return the samples that the client issued of the datasets that are scored, by its own list; none without one."""
    phases = object_of(folder / _ISSUED)
    issued = (phases.get(dataset.name) for dataset in wanted.scored)
    return {sample for samples in issued if isinstance(samples, dict) for sample in samples}


def _progress(log: Path) -> tuple[int, int]:
    """Return the samples that are answered, and all; 0 of 0 while the client starts."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            matches = _PROGRESS.findall(file.read())
    except OSError:
        return 0, 0
    return (int(matches[-1][0]), int(matches[-1][1])) if matches else (0, 0)


def _was_cut_short(folder: Path, wanted: ClientRun) -> bool:
    """Return True if the client was interrupted: it has issued fewer samples, and ends with 0, or fails to score."""
    issued = object_of(folder / SUMMARY).get("n_samples_issued")
    return isinstance(issued, int) and (
        issued < wanted.samples or len(_scored_samples(folder, wanted)) < wanted.accuracy_samples
    )


def _require_status(status: int | None, log: Path, *, started: bool) -> None:
    """Raise RunFailed where the client ended with an error, RunIncomplete where it or its supervisor was killed, and
    where it ended before its run, as its own processes were not ready in time.
    """
    if status == 0:
        return
    how = "its supervisor was killed" if status is None else exit_in_words(status)
    if status is None or status < 0 or status == _INTERRUPTED:
        raise RunIncomplete(f"the reference client ended early: {how}", remedy=f"{_AGAIN}; the client's log is {log}")
    if not started and (late := _NOT_READY.search(last_lines(log, 50))):
        raise RunIncomplete(
            "the reference client was not ready in time",
            cause=late[0],
            remedy=f"{_AGAIN}, best while the machine has no other load; the client's log is {log}",
        )
    raise RunFailed(f"the reference client failed: {how}", cause=last_lines(log, 15), remedy=f"its whole log is {log}")
