"""The last step on a tree: accuracy logs are cut to their ends, and the digest of each whole log goes to accuracy.txt.

Byte for byte what mlcommons/inference tools/submission/truncate_accuracy_log.py does, and no more than once: a log
that is cut already is never taken for a whole one. The whole logs stay where the runs were recorded.
"""

import re
from pathlib import Path

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import bytes_of, open_file, sha256_of, write_bytes
from cm4vllm.common.folders.ownership_notes import note_files
from cm4vllm.submission.privacy_check import inspect_tree

_END_BYTES = 4096
_GAP = b"\n\n...\n\n"
_HASH_LINE = re.compile(rb"^hash=(\w+)$", re.MULTILINE)


def truncate_tree(submission: Path, submitter: str = "") -> list[Path]:
    """Cut all accuracy logs under `submission`, those of `submitter` alone when it is named; return the ones now cut.

    This is the last that is written to a tree: every file of it is read once more after it. Raises SubmissionError when
    there is no log, as truncate_log does, and as inspect_tree does.
    """
    logs = sorted(submission.glob(f"*/{submitter or '*'}/results/*/*/*/accuracy/mlperf_log_accuracy.json"))
    if not logs:
        raise SubmissionError(
            f"no accuracy log of {submitter or 'anyone'} in {submission}",
            remedy="build the tree first: --tags=generate,mlperf,inference,submission",
        )
    cut = [log for log in logs if truncate_log(log)]
    names = (log.relative_to(submission).as_posix() for log in cut)
    note_files(submission, [place for name in names for place in (name, f"{name.rpartition('/')[0]}/accuracy.txt")])
    inspect_tree(submission)
    return cut


def truncate_log(log: Path) -> bool:
    """Cut one accuracy log and write its digest; return False when that was done before.

    Raises SubmissionError where the digest of the whole log is lost, or is not the one that accuracy.txt states.
    """
    scores = log.with_name("accuracy.txt")
    if not scores.is_file():
        raise SubmissionError(f"{scores} is missing", remedy="score the accuracy run: --tags=process,mlperf,accuracy")
    text = bytes_of(scores)
    stated = _HASH_LINE.search(text)
    if _is_cut(log):
        if stated is None:
            raise SubmissionError(
                f"{log} is cut, and the digest of the whole log is not in accuracy.txt",
                remedy="build the tree again from the recorded runs",
            )
        return False
    digest = sha256_of(log)
    if stated is None:
        # The digest first: killed between the two writes, the whole log is still there to be cut.
        write_bytes(scores, text + f"\nhash={digest}\n".encode())
    elif stated.group(1).decode() != digest:
        raise SubmissionError(
            f"{scores} states the digest of another log than {log.name} beside it",
            remedy="build the tree again from the recorded runs",
        )
    return _cut(log) or stated is None


def _cut(log: Path) -> bool:
    if (size := log.stat().st_size) < _END_BYTES:
        return False
    with open_file(log) as file:
        start = file.read(_END_BYTES)
        file.seek(size - _END_BYTES)
        end = file.read(_END_BYTES)
    write_bytes(log, start + _GAP + end)
    return True


def _is_cut(log: Path) -> bool:
    """Return True if a log has the form of one that was cut."""
    if log.stat().st_size != 2 * _END_BYTES + len(_GAP):
        return False
    with open_file(log) as file:
        file.seek(_END_BYTES)
        return file.read(len(_GAP)) == _GAP
