"""Results and files that earlier attempts left of a step: results that it need not make again, and the rest, set aside.

Results are recognised by content, per kind of product. The files of failed and aborted attempts are kept aside in a
folder of their own.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from cm4vllm import __version__
from cm4vllm.accuracy.scorer_needs import ScoreInputs
from cm4vllm.campaign.ledger import ATTEMPTS, free_name
from cm4vllm.campaign.planning.step_environment import SearchExports, StepEnvironment
from cm4vllm.campaign.planning.steps import Product, ResultFolders, Step, key_of
from cm4vllm.campaign.powered_run import PowerInputs, lacks_session
from cm4vllm.campaign.search.settings_job import SettingsJob, exports_of, inputs_digest
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import altered_files
from cm4vllm.common.records import read_record
from cm4vllm.common.settings import Settings
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

S = TypeVar("S", bound=Settings)
Exports = Settings | Mapping[str, str]
_CHANGED = "its inputs have changed"
#: The files that a killed and a failed run leave beside the folder of their result.
_LEFT = (".partial", ".failed")


@dataclass(frozen=True)
class KeptResult:
    """The digest of a step's inputs, and what an earlier command left of its product.

    `exports` is what the step would export where that can be kept, and None where it cannot: `why_not` says why, and is
    empty where there is nothing to keep.
    """

    digest: str
    exports: Exports | None = None
    why_not: str = ""


class Read(Protocol):
    """Reads settings as the recipe of a step reads them."""

    def __call__(self, kind: type[S], /) -> S:
        """Return settings of this class."""


def kept_result(step: Step, inputs: Settings, environment: StepEnvironment, known: str) -> KeptResult:
    """Return the result that an earlier command left of a step, whose `inputs` are its own with all values filled in.

    `known` is the digest of the step's earlier inputs, by the ledger.
    """
    own = step.env(inputs)
    if step.product in _KINDS:
        try:
            return _KINDS[step.product](partial(environment.read, more=own), known)
        except CmError:
            pass  # something that it needs cannot be read: the step itself reports it
    return KeptResult(_digest(step.tags, own))


def _run(read: Read, _known: str) -> KeptResult:
    inputs = read(RunInputs)
    settings = run_settings_of(inputs)
    earlier, why_not = earlier_run(inputs.folder, settings)
    if earlier is not None and read(PowerInputs).under_power and (why := lacks_session(inputs.folder)):
        return KeptResult(settings_sha256(settings), None, why)
    exports = None if earlier is None else {"CM_MLPERF_RUN_RECORD": str(inputs.folder / RUN_FILE)}
    return KeptResult(settings_sha256(settings), exports, why_not)


def _search(read: Read, known: str) -> KeptResult:
    inputs = read(RunInputs)
    path = inputs.folder / SEARCH_FILE

    def exports() -> SearchExports:
        read_record(path, SearchRecord)
        return SearchExports(record=str(path))

    return _of_file(path, settings_sha256(settings_of(replace(inputs, user_conf=""))), known, exports)


def _server_settings(read: Read, known: str) -> KeptResult:
    inputs = read(SettingsJob)
    path = Path(inputs.asked.output_dir).absolute() / SETTINGS_FILE
    return _of_file(path, inputs_digest(inputs), known, lambda: exports_of(read_record(path, SettingsRecord)))


def _scores(read: Read, known: str) -> KeptResult:
    path, nltk_data = Path(read(ResultFolders).result_dir).absolute() / ACCURACY_FILE, read(ScoreInputs).nltk_data or ""
    return _of_run(
        path, AccuracyRecord, "CM_MLPERF_ACCURACY_RECORD", known, lambda files: (files[ACCURACY_LOG], nltk_data)
    )


def _verdict(read: Read, known: str) -> KeptResult:
    path = Path(read(ResultFolders).test_dir).absolute() / COMPLIANCE_FILE
    return _of_run(path, ComplianceRecord, "CM_MLPERF_COMPLIANCE_RECORD", known, lambda files: (files,))


def _of_run(
    path: Path,
    kind: type[AccuracyRecord] | type[ComplianceRecord],
    key: str,
    known: str,
    made_from: Callable[[Mapping[str, str]], tuple[object, ...]],
) -> KeptResult:
    """Return the kept scores of a run, or the verdict on it, in its folder; `made_from` are parts of the digest."""
    run = read_record(path.with_name(RUN_FILE), RunRecord)
    log, settings = run.files[ACCURACY_LOG], run.settings
    content = msgspec.to_builtins(settings.terms), settings.model.sha256, settings.dataset.sha256, __version__

    def exports() -> dict[str, str] | None:
        record = read_record(path, kind)
        refused = isinstance(record, ComplianceRecord) and not record.passed
        whole = record.log_sha256 == log and bool(record.files) and not altered_files(path.parent, record.files)
        return {key: str(path)} if whole and not refused else None

    return _of_file(path, _digest(content, *made_from(run.files)), known, exports)


def _curve(read: Read, _known: str) -> KeptResult:
    inputs, point = read(CurveInputs), read(PointInputs)
    earlier, why_not = earlier_curve(inputs, point)
    exports = {"CM_MLPERF_ENDPOINTS_CURVE": str(Path(inputs.output_dir).absolute() / CURVE_FILE)}
    return KeptResult(curve_identity(inputs, point), None if earlier is None else exports, why_not)


def _point(read: Read, _known: str) -> KeptResult:
    inputs = read(PointInputs)
    earlier, why_not = earlier_point(inputs)
    exports = {"CM_MLPERF_ENDPOINTS_POINT_RECORD": str(Path(inputs.output_dir).absolute() / POINT_FILE)}
    return KeptResult(point_setup(inputs).identity, None if earlier is None else exports, why_not)


_KINDS: Mapping[Product | None, Callable[[Read, str], KeptResult]] = {
    Product.RUN: _run,
    Product.SEARCH: _search,
    Product.SETTINGS: _server_settings,
    Product.SCORES: _scores,
    Product.VERDICT: _verdict,
    Product.CURVE: _curve,
    Product.POINT: _point,
}


def _of_file(path: Path, digest: str, known: str, exports: Callable[[], Exports | None]) -> KeptResult:
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


def _digest(*parts: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def set_aside(out: Path, step: str, folder: Path | None, *, server_died: bool = False) -> str:
    """Move what an attempt of a step left to a folder among the attempts, with the log of a server that died.

    Only what lies below `out` is moved, wherever the `folder` of its result is: the ledger of a copied folder may name
    the folder that was copied, where another job works. Returns the folder's name below `out`, empty where nothing was
    left. Raises OSError.
    """
    target = free_name(out / ATTEMPTS, key_of(step))
    for left in _remains(out, folder):
        place = target / left.name if target.exists() else target
        place.parent.mkdir(parents=True, exist_ok=True)
        left.rename(place)
    if server_died:
        for log in sorted((out / "server").rglob("*.log")):
            target.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                shutil.copy2(log, target / "-".join(log.relative_to(out / "server").parts))
    return str(target.relative_to(out)) if target.exists() else ""


def forget_answers(folder: Path | None) -> None:
    """Remove the answers that are kept of a run in this folder."""
    if folder is not None:
        with contextlib.suppress(OSError):
            remove_answers(file_of(folder))


def _remains(out: Path, folder: Path | None) -> Iterator[Path]:
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
