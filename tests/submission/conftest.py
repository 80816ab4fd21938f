"""A campaign's results on disk: logs of real LoadGen runs, and the records that the other rooms write beside them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from builders import scores_of, server_record
from cm4vllm.common.files import sha256_of, write_json, write_text
from cm4vllm.common.programs.own_program import ProgramFile, program_files
from cm4vllm.common.records import write_record
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.hardware.system_description import SystemAsked, describe_system
from cm4vllm.records.accuracy import AccuracyRecord
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.client import ClientRecord
from cm4vllm.records.described_system import folder_name
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.run import RunRecord, RunSettings
from cm4vllm.records.software import SoftwareRecord
from cm4vllm.rules import Mode, Scenario, Terms, round_terms, terms
from cm4vllm.submission import published_program
from cm4vllm.submission.campaign_software import detect_software
from cm4vllm.submission.checker.source import Source, open_source
from cm4vllm.submission.tree import TreeAsked, build_tree
from standstill import repeat_after_standstill

SUBMITTER = "Nobody"
MODEL = "tiny-llama"
VLLM = "0.32.0"
SAMPLES = 200
ROUND, BENCHMARK = "v6.1", "llama3.1-8b"
SHORT = re.compile(r'("key": "effective_min_duration_ms", "value": )\d+')
#: A server run lasts one pass over the samples, 2 s here. The Offline run keeps the rules' duration, and misses it.
CONF = (
    "*.Server.target_qps = 100\n*.Server.min_duration = 1000\n"
    "*.Offline.target_qps = 0.3\n*.Offline.min_query_count = 200\n"
)
#: The scenarios of the runs.
MEASURED = (Scenario.OFFLINE, Scenario.SERVER)


def run_loadgen(
    out: Path,
    scenario: str,
    mode: str,
    *,
    samples: int = SAMPLES,
    spread_s: float = 1.5,
    conf: str = CONF,
    name: str = "llama3_1-8b",
    audit_config: str = "",
) -> None:
    """Make a run of LoadGen under the names of its own: `scenario` is one of its scenarios, `name` a benchmark's."""
    out.mkdir(parents=True)
    (out / "user.conf").write_text(conf)
    if audit_config:
        (out / "audit.config").write_text(audit_config)
    program = Path(__file__).with_name("loadgen_sut.py")
    argv = [sys.executable, *map(str, (program, out, scenario, mode, samples, spread_s, name))]
    subprocess.run(argv, check=True, timeout=120)
    repeat_after_standstill(argv, out)


@pytest.fixture(scope="session")
def loadgen_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LoadGen's own logs of four short runs: <scenario>/<mode>/."""
    folder = tmp_path_factory.mktemp("loadgen")
    for scenario in MEASURED:
        for mode in Mode:
            run_loadgen(folder / scenario / mode, scenario, mode)
    return folder


@cache
def software() -> SoftwareRecord:
    return detect_software()


@cache
def few_files() -> list[ProgramFile]:
    """Return the files of the program's top folder."""
    return [file for file in program_files() if "/" not in file.name]


@pytest.fixture(autouse=True)
def _small_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a part of the program into each tree: test_program.py has it whole, and so has what starts `cm`."""
    monkeypatch.setattr(published_program, "program_files", few_files)


def make_out(
    out: Path,
    logs: Path,
    *,
    rehearsal: bool,
    samples: int = SAMPLES,
    source: str = "",
    round_name: str = ROUND,
    benchmark: str = BENCHMARK,
) -> TreeAsked:
    """Lay out the results of a campaign over `logs`; return what its tree is asked to be.

    The logs are those of LoadGen of the newest round; for another they get its seeds and the name of its LoadGen.
    """
    system = write_system_files(out, rehearsal=rehearsal)
    for scenario in MEASURED:
        for mode in Mode:
            folder = out / "runs" / folder_name(system) / MODEL / scenario / mode
            folder.mkdir(parents=True)
            for log in (logs / scenario / mode).iterdir():
                if log.name == DETAIL_LOG and round_name != ROUND:
                    write_text(folder / log.name, of_round(log.read_text(), round_name))
                elif log.name == DETAIL_LOG and not rehearsal:  # that of a run of ten minutes, which no test waits for
                    write_text(folder / log.name, SHORT.sub(r"\g<1>600000", log.read_text()))
                else:
                    os.link(log, folder / log.name)
            if round_terms(round_name).layout == "v4.1":
                (folder / "mlperf.conf").write_text("# LoadGen's own\n")
            run_terms = terms(round_name, benchmark, scenario, mode)
            record = run_record(folder, run_terms, rehearsal=rehearsal, samples=samples, source=source)
            write_record(folder / "run.json", record)
            if mode is Mode.ACCURACY:
                write_scores(folder, record, samples)
    return TreeAsked(
        out=out,
        submitter=SUBMITTER,
        model=MODEL,
        command="cm run script --tags=run-mlperf,inference",
        readmes={scenario: f"# {scenario}: measured\n" for scenario in MEASURED},
        page="<html></html>\n",
    )


def write_system_files(out: Path, *, rehearsal: bool, division: str = "open", **more: Any) -> dict[str, str]:
    """Describe this machine in a campaign's results, and return the description."""
    fixed = {"submitter": SUBMITTER, "system_type": "datacenter", "vllm": VLLM, "used": ()}
    packages, machine = {"torch": "2.13.0+cpu", "python": "3.11.7"}, detect_machine()
    asked = SystemAsked(division=division, packages=packages, rehearsal=rehearsal, **fixed, **more)
    system = describe_system(machine, asked)
    write_json(out / "system" / "system.json", system)
    write_record(out / "system" / "machine.json", machine)
    write_record(out / "system" / "software.json", software())
    return system


def of_round(log: str, round_name: str) -> str:
    """Return a detail log with the seeds of another round."""
    own, wanted = round_terms(ROUND), round_terms(round_name)
    for name in ("qsl", "sample_index", "schedule"):
        log = log.replace(str(getattr(own.seeds, name)), str(getattr(wanted.seeds, name)))
    return log.replace(own.loadgen.wheel, wanted.loadgen.wheel)


def run_record(folder: Path, run_terms: Terms, *, rehearsal: bool, samples: int, source: str) -> RunRecord:
    conf = (folder / "user.conf").read_text()
    weights = source or "trained in /models/tiny-llama"
    dataset = {"path": "/data/tiny.json", "source": "made here", "samples": samples, "max_input_tokens": 100}
    settings = RunSettings(
        rehearsal=rehearsal,
        terms=run_terms,
        user_conf=conf,
        samples=samples,
        **{"max_tokens": 128, "min_tokens": 2, "max_in_flight": 64, "target_qps_source": "given"},
        target_qps=float(re.findall(rf"{run_terms.loadgen_scenario}.target_qps = (.*)", conf)[0]),
        model=ModelRecord(
            name=MODEL, path="/models/tiny-llama", source=weights, sha256="1" * 64, weight_data_types="bf16"
        ),
        dataset=DatasetRecord(name="tiny", sha256="2" * 64, **dataset),
        server=server_record(model_name=MODEL, max_model_len=2048, version=VLLM, packages={"torch": "2.13.0+cpu"}),
    )
    answered = {"requests": samples, "completed": samples, "completion_tokens": 8 * samples}
    return RunRecord(
        notice=settings.notice,
        settings=settings,
        settings_sha256="3" * 64,
        **{"started_at": "2026-01-01T00:00:00+00:00", "ended_at": "2026-01-01T00:10:00+00:00", "duration_s": 600},
        loadgen_version=run_terms.loadgen.wheel,
        versions={"mlcommons-loadgen": run_terms.loadgen.wheel},
        files={path.name: sha256_of(path) for path in folder.glob("mlperf_log_*")},
        client=ClientRecord(failed=0, retries=0, prompt_tokens=1, **answered),
    )


def write_scores(folder: Path, record: RunRecord, samples: int, **other: float) -> None:
    values: dict[str, float] = {"rouge1": 38.8, "rouge2": 15.9, "rougeL": 24.5, "rougeLsum": 35.8, "gen_len": 8167644}
    values |= {"gen_num": samples, "tokens_per_sample": 294.45, **other}
    write_text(folder / "accuracy.txt", f"{values}\n")
    scored = AccuracyRecord(
        notice=record.notice,
        scores=scores_of(record.settings.terms, values, samples=samples),
        values=values,
        samples=samples,
        samples_expected=samples,
        tokens=8 * samples,
        log_sha256=record.files["mlperf_log_accuracy.json"],
        **{"scorer": "rouge", "sentences": "punkt_tab", "sentences_sha256": "", "duration_s": 1},
    )
    write_record(folder / "accuracy.json", scored)


@pytest.fixture
def campaign(tmp_path: Path, loadgen_logs: Path) -> Callable[..., TreeAsked]:
    """Lay out a campaign's results over short real runs."""
    return lambda *, rehearsal=True, source="": make_out(
        tmp_path / "out", loadgen_logs, rehearsal=rehearsal, source=source
    )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, loadgen_logs: Path) -> TreeAsked:
    """The results of a rehearsal with the tree of them, for tests that only read."""
    asked = make_out(tmp_path_factory.mktemp("built") / "out", loadgen_logs, rehearsal=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_program, "program_files", few_files)
        build_tree(asked)
    return asked


@pytest.fixture
def own_built(tmp_path: Path, built: TreeAsked) -> TreeAsked:
    """The same, for a test that changes it."""
    return replace(built, out=shutil.copytree(built.out, tmp_path / "out"))


@pytest.fixture
def lay_out(tmp_path: Path, loadgen_logs: Path) -> Callable[..., TreeAsked]:
    """Lay out the results of a rehearsal in a folder of that name."""
    return lambda name, **of: make_out(tmp_path / name, loadgen_logs, rehearsal=True, **of)


@pytest.fixture(scope="session")
def inference(inference_git: Path) -> Source:
    """The sources of mlcommons/inference."""
    return open_source(inference_git)


@pytest.fixture(scope="session")
def parts() -> ModuleType:
    """Return the module that lays out campaigns, for tests that lay out another one."""
    return sys.modules[__name__]


@pytest.fixture
def rewrite() -> Callable[[Path, Callable[[dict], object]], None]:
    """Change a JSON file in place."""

    def change_file(path: Path, change: Callable[[dict], object]) -> None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return change_file
