"""The whole job: from assets and server over the runs to the checked submission and its report.

Every step is a recipe, reached by its tags through the function that the entry recipe hands in; this module decides
which steps, in which order, and what happens when one fails.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Protocol

from cm4vllm import __version__
from cm4vllm.accuracy.sentences import TRAINED
from cm4vllm.assets.catalogue import catalogue
from cm4vllm.assets.models import TINY_NAME
from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.campaign.settings import Job
from cm4vllm.campaign.targets import TargetQps, measured_rate, offline_target, server_target
from cm4vllm.common.errors import CmError, InvalidResult, SourceUnavailable, UsageError
from cm4vllm.common.files import require_space, writable_folder, write_text
from cm4vllm.common.progress import say, warn
from cm4vllm.common.records import now, read_record, write_record
from cm4vllm.common.units import SamplesPerSecond
from cm4vllm.common.version import commit_of_this_repository
from cm4vllm.loadgen.logs import read_performance
from cm4vllm.loadgen.records import RUN_FILE, RunRecord
from cm4vllm.report.model import Report, load
from cm4vllm.report.summary import summary_html
from cm4vllm.report.table import final_table
from cm4vllm.results.records import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.rules import Mode, Scenario
from cm4vllm.serving.probe import check_vocabulary
from cm4vllm.serving.records import ServerRecord

__all__ = ["Recipes", "run"]

#: Room for logs, tree and report. A full-length run of both scenarios with 37 tokens a sample left 13 MiB; answers may
#: be as long as the benchmark allows, and a run that is repeated stands beside the old one until it is whole.
SPACE_BYTES = 512 * 2**20


class Recipes(Protocol):
    """Runs the recipe with these tags on top of this environment, and returns what it exports. Raises CmError."""

    def __call__(self, tags: str, env: Mapping[str, str]) -> Mapping[str, str]: ...


def run(job: Job, recipes: Recipes, command: str) -> Report:
    """Do the whole job and print its table. Raises CmError for what failed, after all that can be shown was shown.

    `command` is the line that started it, for the records.
    """
    for note in job.notes:
        say(f"note: {note}")
    out = writable_folder(job.out)
    require_space(out, SPACE_BYTES, "the results", "--output_dir")
    with _only_one(out):
        return _Campaign(job, recipes, out).run(command)


class _Campaign:
    def __init__(self, job: Job, recipes: Recipes, out: Path) -> None:
        self.job = job
        self.out = out
        self.recipes = recipes
        self.failure: CmError | None = None
        self.env: dict[str, str] = {
            "CM_MLPERF_ROUND": job.round.name,
            "CM_MLPERF_MODEL": job.benchmark.name,
            "CM_MLPERF_RUN_STYLE": job.execution_mode,
            "CM_MLPERF_SUBMISSION_GENERATION_STYLE": job.settings.style,
            "CM_MLPERF_SUBMISSION_DIVISION": job.division,
            "CM_MLPERF_SUBMISSION_SYSTEM_TYPE": job.settings.category,
            "CM_MLPERF_SUBMITTER": job.settings.submitter,
            "CM_MLPERF_INFERENCE_API_SERVER": job.settings.api_server,
            "CM_MLPERF_RESULTS_DIR": str(out),
            "CM_RERUN": "yes" if job.settings.rerun else "no",
        }
        for key, value in (("CM_TEST_QUERY_COUNT", job.settings.test_query_count),
                           ("CM_MLPERF_MAX_DURATION_TEST", job.settings.max_test_duration)):
            if value is not None:
                self.env[key] = str(value)

    def run(self, command: str) -> Report:
        started = now()
        self._checker_source()
        self._assets_and_server()
        self._step("detect,cpu")
        self._step("get,sut,description", CM_SUT_DIR=str(self.out / "system"))
        write_record(self.out / CAMPAIGN_FILE, CampaignRecord(
            command=command, cm_version=metadata.version("cmind"), cm4vllm_version=__version__,
            commit=commit_of_this_repository(), division=self.job.division, submitter=self.job.settings.submitter,
            round=self.job.round.name, benchmark=self.job.benchmark.name, execution_mode=self.job.execution_mode,
            started_at=started, system=self.env["CM_SUT_NAME"], model=self.env["CM_ML_MODEL_NAME"],
        ))
        self._runs()
        self._submission()
        return self._report()

    def _step(self, tags: str, **env: str) -> Mapping[str, str]:
        """Run a recipe; what it exports is known to all later ones."""
        exported = self.recipes(tags, {**self.env, **env})
        self.env.update(exported)
        return exported

    def _checker_source(self) -> None:
        """Have the official checker before hours are spent on a run that nobody could check."""
        if not self.job.settings.run_checker:
            return
        try:
            self._step("get,mlperf,inference,src")
        except SourceUnavailable as error:
            if not self.job.rehearsal:
                raise
            warn(f"the official checker will not run on this rehearsal\n{error}")

    def _assets_and_server(self) -> None:
        server = {"CM_VLLM_SERVER_BACKGROUND": "yes", "CM_VLLM_SERVER_DIR": str(self.out / "server")}
        name = self.job.settings.vllm_model_name
        if self.job.settings.api_server:
            # Before anything else: a wrong address should not cost a download.
            self._step("run,vllm-server", CM_VLLM_SERVER_MODEL_NAME=name, **server)
        self._step(f"get,mlperf,inference,loadgen,_r{self.job.round.name.removeprefix('v')}")
        self._step(f"get,ml-model,{self._model_source()}")
        if self.job.settings.api_server:
            check_vocabulary(read_record(Path(self.env["CM_VLLM_SERVER_RECORD"]), ServerRecord),
                             read_record(Path(self.env["CM_ML_MODEL_RECORD"]), ModelRecord))
        self._quantize()
        self._step(f"get,dataset,{self.job.settings.dataset_source}")
        self._sentence_model()
        if not self.job.settings.api_server:
            self._step("run,vllm-server", **server)

    def _quantize(self) -> None:
        """Go on with a quantised model where --quantize names its scheme."""
        settings = self.job.settings
        if not settings.quantize:
            return
        source = settings.dataset_source if settings.dataset_source == "_tiny" else "_mlcommons"
        if settings.calibration_path:
            source = f"_path.{settings.calibration_path}"
        self._step(f"get,dataset,_calibration,{source}")
        self._step(f"quantize,ml-model,{settings.quantize}")

    def _sentence_model(self) -> None:
        """Have what scoring needs before hours are spent on answers."""
        dataset = read_record(Path(self.env["CM_DATASET_RECORD"]), DatasetRecord)
        if Mode.ACCURACY in self.job.modes and dataset.sentences == TRAINED:
            self._step("get,nltk-data")

    def _model_source(self) -> str:
        """Say where the model comes from: what the variation says, unless --vllm_model_name names another model."""
        name = self.job.settings.vllm_model_name
        if self.job.settings.model_source != "_tiny" or name in ("", TINY_NAME):
            return self.job.settings.model_source
        if name in catalogue().models:
            return f"_catalogue.{name}"
        folder = Path(name).expanduser().absolute()
        return f"_path.{folder}" if folder.is_dir() else f"_hf.{name}"

    def _runs(self) -> None:
        rate: SamplesPerSecond | None = None
        for scenario in self.job.scenarios:
            if Mode.ACCURACY in self.job.modes and scenario is Scenario.OFFLINE:
                rate = measured_rate(self._accuracy(scenario, TargetQps(1, "unused: every sample is sent at once")))
            target = self._target(scenario, rate)
            if Mode.PERFORMANCE in self.job.modes:
                self._performance(scenario, target)
            if Mode.ACCURACY in self.job.modes and scenario is not Scenario.OFFLINE:
                self._accuracy(scenario, target)

    def _target(self, scenario: Scenario, rate: SamplesPerSecond | None) -> TargetQps:
        settings = self.job.settings
        given = settings.offline_target_qps if scenario is Scenario.OFFLINE else settings.server_target_qps
        if given is not None:
            return TargetQps(given, f"given by --{scenario.lower()}_target_qps")
        if (earlier := self._earlier_target(scenario)) is not None:
            return earlier
        if rate is None:
            rate = self._rate()
        return (offline_target(rate, rehearsal=self.job.rehearsal) if scenario is Scenario.OFFLINE
                else server_target(rate))

    def _earlier_target(self, scenario: Scenario) -> TargetQps | None:
        """Return the target of a valid result that is there already, so that the same command finds it again."""
        folder = self._folder(scenario, Mode.PERFORMANCE)
        if self.job.rehearsal or self.job.settings.rerun or not (folder / RUN_FILE).exists():
            return None
        settings = read_record(folder / RUN_FILE, RunRecord).settings
        return TargetQps(settings.target_qps, settings.target_qps_source) if read_performance(folder).valid else None

    def _performance(self, scenario: Scenario, target: TargetQps) -> None:
        """Make the performance run; once more where a target of ours let an Offline run end too early to be valid."""
        self._measure(scenario, Mode.PERFORMANCE, target)
        result = read_performance(self._folder(scenario, Mode.PERFORMANCE))
        if scenario is not Scenario.OFFLINE or self.job.settings.offline_target_qps or self.job.rehearsal:
            return
        if result.duration < result.min_duration:
            say(f"the Offline run ended after {result.duration}, before the {result.min_duration} that the rules ask: "
                "the server is faster than it was in the accuracy run. It is made again, sized by the rate just seen")
            self._measure(scenario, Mode.PERFORMANCE, offline_target(result.samples_per_second, rehearsal=False))

    def _rate(self) -> SamplesPerSecond:
        """Measure the server's Offline rate in a short run of its own, where no accuracy run gives it."""
        say("no target QPS was given: the server's rate is measured first, with a short Offline run")
        target = TargetQps(1, "unused: every sample is sent at once")
        folder = self.out / "rate"
        return measured_rate(self._measure(Scenario.OFFLINE, Mode.ACCURACY, target, folder, CM_MLPERF_RUN_STYLE="test"))

    def _accuracy(self, scenario: Scenario, target: TargetQps) -> RunRecord:
        record = self._measure(scenario, Mode.ACCURACY, target)
        self._step("process,mlperf,accuracy", CM_MLPERF_ACCURACY_RESULTS_DIR=str(self._folder(scenario, Mode.ACCURACY)))
        return record

    def _measure(self, scenario: Scenario, mode: Mode, target: TargetQps, folder: Path | None = None,
                 **env: str) -> RunRecord:
        """Make one LoadGen run and return its record."""
        env = {
            **env,
            "CM_MLPERF_LOADGEN_SCENARIO": scenario,
            "CM_MLPERF_LOADGEN_MODE": mode,
            "CM_MLPERF_LOADGEN_TARGET_QPS": str(target.value),
            "CM_MLPERF_LOADGEN_TARGET_QPS_SOURCE": target.source,
            "CM_MLPERF_OUTPUT_DIR": str(folder or self._folder(scenario, mode)),
        }
        conf = self._step("generate,user-conf,mlperf,inference", **env)
        done = self._step("app,mlperf,inference,vllm", **env, **conf)
        return read_record(Path(done["CM_MLPERF_RUN_RECORD"]), RunRecord)

    def _folder(self, scenario: Scenario, mode: Mode) -> Path:
        return self.out / "runs" / self.env["CM_SUT_NAME"] / self.env["CM_ML_MODEL_NAME"] / scenario / mode

    def _submission(self) -> None:
        if set(self.job.modes) != set(Mode):
            say("no submission tree: it needs an accuracy and a performance run of each scenario")
            return
        self._step("generate,mlperf,inference,submission")
        self._step("truncate,mlperf,inference,accuracy,log")
        if "CM_MLPERF_INFERENCE_SOURCE" not in self.env:
            return
        try:
            self._step("run,mlperf,inference,submission,checker")
        except CmError as error:
            self.failure = error

    def _report(self) -> Report:
        report = load(self.out)
        page = summary_html(self.out)
        write_text(self.out / "summary.html", page)
        for copy in (self.out / "submission").glob(f"*/*/results/{self.env['CM_SUT_NAME']}/summary.html"):
            write_text(copy, page)
        print(final_table(report), flush=True)
        if self.failure is not None:
            raise self.failure
        invalid = [f"{run.scenario}: {'; '.join(run.reasons)}" for run in report.invalid_results]
        if invalid and not self.job.rehearsal:
            raise InvalidResult("the rules call this result invalid", cause="\n".join(invalid),
                                remedy="the report names the limit that was missed; a lower --server_target_qps or a "
                                "higher --offline_target_qps usually mends it")
        return report


@contextmanager
def _only_one(out: Path) -> Iterator[None]:
    """Keep a second run out of the same results folder while this one lasts."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"another run is writing its results to {out}",
                             remedy="wait for it, or choose another --output_dir") from error
        yield
