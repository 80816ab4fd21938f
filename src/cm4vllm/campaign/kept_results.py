"""Results and files that earlier attempts left of a step: results that it need not make again, and the rest, set aside.

Results are recognised by content, per kind of product. The files of failed and aborted attempts are kept aside in a
folder of their own.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from cm4vllm import __version__
from cm4vllm.campaign.ledger import ATTEMPTS, free_name
from cm4vllm.campaign.planning.steps import Product, Step, key_of
from cm4vllm.campaign.powered_run import lacks_session
from cm4vllm.campaign.search.settings_job import exports_of, inputs_digest
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import altered_files
from cm4vllm.common.records import read_record
from cm4vllm.compliance.audit import run_settings_of
from cm4vllm.endpoints.curve_search import CurveInputs, curve_identity, earlier_curve
from cm4vllm.endpoints.point import PointInputs, earlier_point, point_setup
from cm4vllm.endpoints.records import CURVE_FILE
from cm4vllm.loadgen.identity import settings_sha256
from cm4vllm.loadgen.measurement import RunInputs, earlier_run, settings_of
from cm4vllm.loadgen.process.kept_answers import file_of, remove_answers
from cm4vllm.records.accuracy import ACCURACY_FILE, AccuracyRecord
from cm4vllm.records.compliance import COMPLIANCE_FILE, ComplianceRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.searches.rate_search import SEARCH_FILE, SearchRecord
from cm4vllm.records.searches.settings_search import SETTINGS_FILE, SettingsRecord
from cm4vllm.results.endpoints.curves import POINT_FILE

_CHANGED = "its inputs have changed"
#: The inputs that name the folder of a step's result.
_FOLDERS = ("CM_MLPERF_OUTPUT_DIR", "CM_MLPERF_ACCURACY_RESULTS_DIR", "CM_MLPERF_COMPLIANCE_RESULTS_DIR")
#: The files that a killed and a failed run leave beside the folder of their result.
_LEFT = (".partial", ".failed")


@dataclass(frozen=True)
class KeptResult:
    """The digest of a step's inputs, and what an earlier command left of its product.

    `exports` is what the step would export where that can be kept, and None where it cannot: `why_not` says why, and is
    empty where there is nothing to keep.
    """

    digest: str
    exports: Mapping[str, str] | None = None
    why_not: str = ""


def kept_result(step: Step, inputs: Mapping[str, str], env: Mapping[str, str], known: str) -> KeptResult:
    """Return the result that an earlier command left of a step.

    `env` is the environment that its recipe would get, with its `inputs`; `known` is the digest of the step's earlier
    inputs, by the ledger.
    """
    if step.product in _KINDS:
        try:
            return _KINDS[step.product](env, known)
        except CmError:
            pass  # something that it needs cannot be read: the step itself reports it
    return KeptResult(_digest(step.tags, dict(inputs)))


def result_folder(inputs: Mapping[str, str]) -> Path | None:
    """Return the folder of a step's result, None for a step without one."""
    return next((Path(inputs[key]) for key in _FOLDERS if inputs.get(key)), None)


def _run(env: Mapping[str, str], _known: str) -> KeptResult:
    inputs = RunInputs.of(env)
    settings = run_settings_of(inputs)
    earlier = earlier_run(inputs.folder, settings)
    if earlier.record is not None and (why_not := lacks_session(inputs, env)):
        return KeptResult(settings_sha256(settings), None, why_not)
    exports = None if earlier.record is None else {"CM_MLPERF_RUN_RECORD": str(inputs.folder / RUN_FILE)}
    return KeptResult(settings_sha256(settings), exports, earlier.why_not)


def _search(env: Mapping[str, str], known: str) -> KeptResult:
    inputs = RunInputs.of(env)
    path = inputs.folder / SEARCH_FILE
    digest = settings_sha256(settings_of(replace(inputs, user_conf="")))

    def exports() -> dict[str, str]:
        read_record(path, SearchRecord)
        return {"CM_MLPERF_SEARCH_RECORD": str(path), "CM_MLPERF_SEARCH_RESULT": ""}

    return _of_file(path, digest, known, exports)


def _server_settings(env: Mapping[str, str], known: str) -> KeptResult:
    path = Path(env["CM_MLPERF_OUTPUT_DIR"]).absolute() / SETTINGS_FILE
    return _of_file(path, inputs_digest(env), known, lambda: exports_of(read_record(path, SettingsRecord)))


def _scores(env: Mapping[str, str], known: str) -> KeptResult:
    folder = Path(env["CM_MLPERF_ACCURACY_RESULTS_DIR"]).absolute()
    run = read_record(folder / RUN_FILE, RunRecord)
    log = run.files[ACCURACY_LOG]

    def exports() -> dict[str, str] | None:
        record = read_record(folder / ACCURACY_FILE, AccuracyRecord)
        whole = record.log_sha256 == log and bool(record.files) and not altered_files(folder, record.files)
        return {"CM_MLPERF_ACCURACY_RECORD": str(folder / ACCURACY_FILE)} if whole else None

    return _of_file(folder / ACCURACY_FILE, _digest(_content(run), log, env.get("CM_NLTK_DATA", "")), known, exports)


def _verdict(env: Mapping[str, str], known: str) -> KeptResult:
    folder = Path(env["CM_MLPERF_COMPLIANCE_RESULTS_DIR"]).absolute()
    run = read_record(folder / RUN_FILE, RunRecord)
    log = run.files[ACCURACY_LOG]

    def exports() -> dict[str, str] | None:
        record = read_record(folder / COMPLIANCE_FILE, ComplianceRecord)
        files = bool(record.files) and not altered_files(folder, record.files)
        whole = record.passed and record.log_sha256 == log and files
        return {"CM_MLPERF_COMPLIANCE_RECORD": str(folder / COMPLIANCE_FILE)} if whole else None

    return _of_file(folder / COMPLIANCE_FILE, _digest(_content(run), run.files), known, exports)


def _curve(env: Mapping[str, str], _known: str) -> KeptResult:
    inputs, point = CurveInputs.of(env), PointInputs.of(env)
    earlier, why_not = earlier_curve(inputs, point)
    path = str(Path(inputs.output_dir).absolute() / CURVE_FILE)
    return KeptResult(
        curve_identity(inputs, point), None if earlier is None else {"CM_MLPERF_ENDPOINTS_CURVE": path}, why_not
    )


def _point(env: Mapping[str, str], _known: str) -> KeptResult:
    inputs = PointInputs.of(env)
    earlier, why_not = earlier_point(inputs)
    path = str(Path(inputs.output_dir).absolute() / POINT_FILE)
    exports = None if earlier is None else {"CM_MLPERF_ENDPOINTS_POINT_RECORD": path}
    return KeptResult(point_setup(inputs).identity, exports, why_not)


_KINDS: Mapping[Product | None, Callable[[Mapping[str, str], str], KeptResult]] = {
    Product.RUN: _run,
    Product.SEARCH: _search,
    Product.SETTINGS: _server_settings,
    Product.SCORES: _scores,
    Product.VERDICT: _verdict,
    Product.CURVE: _curve,
    Product.POINT: _point,
}


def _of_file(path: Path, digest: str, known: str, exports: Callable[[], dict[str, str] | None]) -> KeptResult:
    """Return the kept product in one file, which counts if it was made from the same inputs."""
    if not path.exists():
        return KeptResult(digest)
    if digest != known:
        return KeptResult(digest, None, _CHANGED if known else "the ledger does not say what it was made from")
    try:
        made = exports()
    except CmError as error:
        return KeptResult(digest, None, error.what)
    return KeptResult(digest, made, "" if made else f"{path.name} is not of the run that is there now, or not whole")


def _content(run: RunRecord) -> tuple[object, ...]:
    """Return the inputs of a run's scores beside its log."""
    settings = run.settings
    return msgspec.to_builtins(settings.terms), settings.model.sha256, settings.dataset.sha256, __version__


def _digest(*parts: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def set_aside(out: Path, step: str, inputs: Mapping[str, str], *, server_died: bool = False) -> str:
    """Move what an attempt of a step left to a folder among the attempts, with the log of a server that died.

    Only what lies below `out` is moved, whatever the inputs say: those of the ledger of a copied folder may name the
    folder that was copied, where another job works. Returns the folder's name below `out`, empty where nothing was
    left. Raises OSError.
    """
    target = free_name(out / ATTEMPTS, key_of(step))
    for folder in _remains(out, inputs):
        place = target / folder.name if target.exists() else target
        place.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(place)
    if server_died:
        for log in sorted((out / "server").rglob("*.log")):
            target.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                shutil.copy2(log, target / "-".join(log.relative_to(out / "server").parts))
    return str(target.relative_to(out)) if target.exists() else ""


def forget_answers(inputs: Mapping[str, str]) -> None:
    """Remove the answers that are kept of a run, whose folder is among the inputs of its step."""
    if (folder := result_folder(inputs)) is not None:
        with contextlib.suppress(OSError):
            remove_answers(file_of(folder))


def _remains(out: Path, inputs: Mapping[str, str]) -> Iterator[Path]:
    folder = result_folder(inputs)
    if folder is None or not _is_below(out, folder := out / folder):
        return
    for ending in _LEFT:
        if (left := folder.with_name(f"{folder.name}{ending}")).is_dir():
            yield left
    if list(folder.glob("probe-*")) and not (folder / SEARCH_FILE).exists():
        yield folder  # of a search that did not end


def _is_below(out: Path, folder: Path) -> bool:
    """Return True if a folder lies below another, and is reached from there through plain folders only."""
    if not folder.is_relative_to(out):
        return False
    parts = folder.relative_to(out).parts
    links = any(out.joinpath(*parts[:depth]).is_symlink() for depth in range(1, len(parts) + 1))
    return bool(parts) and ".." not in parts and not links
