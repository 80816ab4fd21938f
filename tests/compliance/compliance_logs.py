"""Entries of the logs of compliance tests, and where the official scripts lie that decide on them."""

import numpy as np

#: Commits of mlcommons/inference whose verification is compared, with the folder of their tests.
OFFICIAL = {"newest": ("b66003e10e2db4b8c36a448b0545ec90fcc6e9e9", "compliance"), "v4.1": ("v4.1", "compliance/nvidia")}


def entry(
    tokens: list[int],
    *,
    first: list[int] | None = None,
    count: int | None = None,
    index: int = 0,
    dtype: type = np.int32,
) -> dict[str, object]:
    """Return one entry of an accuracy log, as LoadGen writes it; `first` is the first token's data, if any."""
    made: dict[str, object] = {
        "seq_id": index,
        "qsl_idx": index,
        "data": np.array(tokens, dtype).tobytes().hex(),
        "token_count": len(tokens) if count is None else count,
    }
    if first is not None:
        made["token_data"] = np.array(first, dtype).tobytes().hex()
    return made
