"""grader.json: a grader that is ready to be used."""

from cm4vllm.common.records import Record

#: The names of the record's file, and of the index of tests beside it.
GRADER_FILE, PROBLEMS_FILE = "grader.json", "problems.json"


class GraderRecord(Record, frozen=True, kw_only=True):
    """A grader: its official files lie in `official`, its Python is `python`, `commits` say of which repositories;
    of a data set that the user gives it has a digest of the files.

    `problems` is the file of a ProblemIndex, empty for a grader whose tasks bring their tests.
    """

    name: str
    script: str
    official: str
    python: str
    commits: dict[str, str]
    packages: str
    problems: str = ""


class Verdict(Record, frozen=True, kw_only=True):
    """The grade of an answer: `right` is None for an answer that the official script leaves out of its count.

    `held` says that a limit of the sandbox ended it; it counts as wrong.
    """

    right: bool | None
    why: str = ""
    held: bool = False
