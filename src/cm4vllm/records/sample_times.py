"""The client's own record of each sample: when it was issued, its first token and end, its tokens and finish reason."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from cm4vllm.common.errors import RunFailed

Rows = npt.NDArray[np.void]

#: The name of the file in a run's folder: an array of NumPy (format .npy) with a row for each sample, in the order of
#: issue. Times are in ns since the first sample was issued; first_ns is -1 where no first token was seen, as in whole
#: answers. `index` is that of the sample in the dataset, `end` one of STOPPED and AT_LENGTH.
SAMPLES_FILE = "client_samples.npy"
FIELDS = [
    ("index", "<i4"),
    ("prompt_tokens", "<i4"),
    ("tokens", "<i4"),
    ("end", "u1"),
    ("issued_ns", "<i8"),
    ("first_ns", "<i8"),
    ("last_ns", "<i8"),
]
#: Why an answer ended: by a token, or at its greatest length.
STOPPED, AT_LENGTH = 0, 1


def read_sample_times(folder: Path) -> Rows | None:
    """Return the rows that a run's client wrote into `folder`; None where there is no such file.

    Raises RunFailed when it is not of this format.
    """
    path = folder / SAMPLES_FILE
    if not path.is_file():
        return None
    try:
        rows: Rows = np.load(path, allow_pickle=False)
        if rows.dtype != np.dtype(FIELDS):
            raise ValueError(f"its fields are {rows.dtype}")
    except (OSError, ValueError, EOFError) as error:
        raise RunFailed(
            f"{path} is not the client's record of its samples",
            cause=str(error),
            remedy="remove the run's folder and run it again",
        ) from error
    return rows


def client_values(name: str, rows: Rows | None) -> npt.NDArray[np.float64] | None:
    """Return the values of TTFT, of TPOT or, without a name, of the latency, in ms, in the order of issue.

    None where the record has none: answers that came whole have no first token.
    """
    if rows is None or not len(rows) or (name and (rows["first_ns"] < 0).any()):
        return None
    if name == "TTFT":
        return np.asarray((rows["first_ns"] - rows["issued_ns"]) / 1e6)
    if name == "TPOT":
        longer = rows[rows["tokens"] > 1]
        spans = (longer["last_ns"] - longer["first_ns"]) / 1e6
        return np.asarray(spans / (longer["tokens"] - 1)) if len(longer) else None
    return np.asarray((rows["last_ns"] - rows["issued_ns"]) / 1e6)
