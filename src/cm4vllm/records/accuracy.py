"""accuracy.json: the scores of one accuracy run."""

from cm4vllm.common.records import Record

#: The name of the record's file in an accuracy run's folder.
ACCURACY_FILE = "accuracy.json"
#: The name of the file there that the official checkers read the scores from.
ACCURACY_TEXT = "accuracy.txt"
#: The beginning of a line of that file that names a metric without a score, and the reason.
NOT_SCORED = "Not scored: "


class Score(Record, frozen=True, kw_only=True):
    """One metric against its target. `label` is its key in accuracy.txt, `metric` the checker's name for it.

    `met` is None for a total of which only a part was scored.
    """

    metric: str
    label: str
    value: float
    lower: float | None
    upper: float | None
    met: bool | None


class AccuracyRecord(Record, frozen=True, kw_only=True):
    """The scores of one accuracy log; `log_sha256` is the digest of the untruncated mlperf_log_accuracy.json.

    `sentences` is the way sentences were split (DatasetRecord), `sentences_sha256` the digest of its model. `unscored`
    are the metrics that have no score, each with the reason. `files` has the SHA-256 of accuracy.txt. `verified` is in
    records of versions that computed ROUGE themselves: the samples that rouge-score scored again, with the same result.
    """

    notice: str
    scores: list[Score]
    values: dict[str, float]
    samples: int
    samples_expected: int
    tokens: int
    scorer: str
    sentences: str
    sentences_sha256: str
    log_sha256: str
    duration_s: float
    unscored: dict[str, str] = {}
    verified: int = 0
    files: dict[str, str] = {}
