"""Every failure a user can meet, in one tree.

    CmError                   1   a failure that has no code of its own
      UsageError             20   an unknown flag, variation, model, scenario or value
      ModelError             21   the model is not one that can be served or described
      DatasetError           22   the dataset is unreadable or does not fit the benchmark
      ServerUnreachable      30   nothing answers at the server's address
      ServerUnsuitable       31   a server answers, but it cannot be measured
      PortInUse              32   another program listens on the server's port
      ServerDied             33   the server ended unexpectedly
      ServerNotReady         34   the server did not serve a completion in time
      ServerStuck            35   the server process is up but has stopped responding
      DiskFull               40   no space left where the results or the assets go
      NotWritable            41   no permission to write there; or what a finished command printed was not written
      InstallError           42   a package or an environment could not be installed
      SourceUnavailable      43   a source repository could not be fetched
      DownloadError          44   a model or a dataset could not be downloaded completely
      LimitTooLow            45   the machine allows too few open files, local ports, too little memory for a run
      EnvironmentBroken      46   vLLM generates no token with an environment that was made before
      RunFailed              50   requests failed, or the LoadGen process ended unexpectedly
      InvalidResult          51   the run ended well, but the rules call its result invalid
      ClockChanged           52   the clock was set during a run, whose times then mean nothing
      RunIncomplete          53   a client of MLPerf Endpoints ended before all samples were answered
      SubmissionError        60   the submission cannot be built from these records
      CheckerFailed          61   the official checker refuses the submission
      ResultsDiffer          62   a result that was measured again is not the same
      RecipeError             3   a recipe is wrong: its meta, its customize.py
      NativeCommandError      2   a recipe's command ended with an error
      NotFoundError          16   no recipe, variation or cache entry matches
      Interrupted           130   the user stopped the run (Ctrl-C, SIGINT)

The number is the exit code of `cm`. 1, 2 and 16 are those of the public script engine for the same failures.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager


class CmError(Exception):
    """A failure with what failed, why, and what to do about it.

    `what` is one line. `cause` and `remedy` may be empty only where nothing is known or can be done. `state` is also
    given to a program that asked for JSON, under `new_state`.
    """

    exit_code = 1

    def __init__(
        self, failure: str, *, cause: str = "", remedy: str = "", state: Mapping[str, object] | None = None
    ) -> None:
        """Take what failed, why, what to do, and state for the caller; all but the first may be empty."""
        super().__init__(failure)
        self.what = failure
        self.cause = cause
        self.remedy = remedy
        self.state = state or {}

    @property
    def in_one_line(self) -> str:
        """The first lines of what failed, of the cause and of the remedy."""
        failure, cause, remedy = ((text.splitlines() or [""])[0] for text in (self.what, self.cause, self.remedy))
        return failure + (f" ({cause})" if cause else "") + (f"; {remedy}" if remedy else "")

    def reworded(self, old: str, new: str) -> None:
        """Replace words of the message: a path that has changed, the flag that a key was given by."""
        for part in ("what", "cause", "remedy"):
            setattr(self, part, getattr(self, part).replace(old, new))

    @classmethod
    def again(cls, exit_code: int, text: str) -> CmError:
        """Make the error that a nested run reported by its exit code and its text, which has the form of `__str__`."""
        kind = next((kind for kind in _subclasses(CmError) if kind.exit_code == exit_code), CmError)
        parts = _PARTS.fullmatch(text)
        failure, cause, remedy = parts.groups("") if parts else (text, "", "")
        error = kind(failure, cause=cause.replace(_INDENT, "\n"), remedy=remedy.replace(_INDENT, "\n"))
        error.exit_code = exit_code
        return error

    def __str__(self) -> str:
        """Return failure, cause and remedy, each on lines of its own, without control characters."""
        from cm4vllm.common.terminal_text import printable  # only errors need it, and every start would pay for it

        lines = [self.what]
        if self.cause:
            lines.append(f"  cause:  {_indented(self.cause)}")
        if self.remedy:
            lines.append(f"  remedy: {_indented(self.remedy)}")
        return printable("\n".join(lines))


def _subclasses(kind: type[CmError]) -> Iterator[type[CmError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


#: Lines of a cause or a remedy after its first begin with this.
_INDENT = "\n          "
_PARTS = re.compile(r"(.*?)(?:\n  cause:  (.*?))?(?:\n  remedy: (.*))?", re.DOTALL)


def _indented(text: str) -> str:
    return text.rstrip().replace("\n", _INDENT)


class UsageError(CmError):
    exit_code = 20


class ModelError(CmError):
    exit_code = 21


class DatasetError(CmError):
    exit_code = 22


class ServerUnreachable(CmError):
    exit_code = 30


class ServerUnsuitable(CmError):
    exit_code = 31


class PortInUse(CmError):
    exit_code = 32


class ServerDied(CmError):
    exit_code = 33


class ServerNotReady(CmError):
    exit_code = 34


class ServerStuck(CmError):
    exit_code = 35


class DiskFull(CmError):
    exit_code = 40


class NotWritable(CmError):
    exit_code = 41


class InstallError(CmError):
    exit_code = 42


class SourceUnavailable(CmError):
    exit_code = 43


class DownloadError(CmError):
    exit_code = 44


class LimitTooLow(CmError):
    exit_code = 45


class EnvironmentBroken(CmError):
    exit_code = 46


class RunFailed(CmError):
    exit_code = 50


class InvalidResult(CmError):
    exit_code = 51


class ClockChanged(CmError):
    exit_code = 52


class RunIncomplete(CmError):
    exit_code = 53


class SubmissionError(CmError):
    exit_code = 60


class CheckerFailed(CmError):
    exit_code = 61


class ResultsDiffer(CmError):
    exit_code = 62


class RecipeError(CmError):
    exit_code = 3


class NativeCommandError(CmError):
    exit_code = 2


class NotFoundError(CmError):
    exit_code = 16


class Interrupted(CmError):
    exit_code = 130


def nearest(word: str, choices: Iterable[str], listing: str = "") -> str:
    """Return a hint that names the choices that were probably meant, or lists them when none is near.

    `listing` is a sentence that says how to see all of them; it stands in place of a list of more than a few.
    """
    known = sorted({str(choice) for choice in choices})  # plain words, also out of an enumeration
    if others := _of_other_numbers(word, known):
        return f"known: {', '.join(others)}"
    if meant := [repr(choice) for choice in _meant(word, known)]:
        return f"did you mean {' or '.join(filter(None, [', '.join(meant[:-1]), meant[-1]]))}?"
    if len(known) > _LISTED and listing:
        return listing
    return f"known: {', '.join(known)}" if known else ""


#: The number of choices that are listed where there is another way to see them.
_LISTED = 12
#: The similarity (difflib's ratio) from which one word is taken for a misspelling of another: `vlm` and `vllm` have
#: 0.86, `wokers` and `workers` 0.92; `replay` and `ray` 0.67, `rehearsal` and `preset` 0.53.
_SIMILAR = 0.75
#: The similarity of a part of a choice, and of a choice before others that contain the word are: `round` and `run` have
#: 0.75, `wokers` and `workers` 0.92.
_MISSPELT = 0.85
#: The number of names that are listed where several may be meant.
_NAMED = 3
#: The shortest word that counts as the beginning of another.
_BEGINNING = 3


def _of_other_numbers(word: str, known: Sequence[str]) -> list[str]:
    """Return the choices that have other numbers than `word` and are else the same: versions, which no one misspells.

    A number is not near another one: each of these choices may be meant, and none of them.
    """
    import difflib  # only errors need it, and every start would pay for it

    form = _form(word)
    if form == word.lower():
        return []
    others = [choice.lower() for choice in known if _form(choice) != form]
    if difflib.get_close_matches(word.lower(), others, n=1, cutoff=_MISSPELT):
        return []
    return [choice for choice in known if _form(choice) == form]


def _form(word: str) -> str:
    return re.sub(r"\d+", "#", word.lower())


def _meant(word: str, known: Sequence[str]) -> list[str]:
    """Return the choice that `word` misspells, else the few that it begins, is one part of, or is contained in."""
    import difflib  # only errors need it, and every start would pay for it

    given = word.lower()
    plain = {choice.lower(): choice for choice in reversed(known)}
    if close := difflib.get_close_matches(given, plain, n=1, cutoff=_MISSPELT):
        return [plain[close[0]]]
    whole = sorted(
        (choice for choice in plain if re.search(rf"(?<![a-z0-9]){re.escape(given)}(?![a-z0-9])", choice)),
        key=lambda choice: (not choice.startswith(given), len(choice), choice),
    )
    if len(given) >= _BEGINNING and len(whole) > 1:
        return [plain[choice] for choice in whole[:_NAMED]]
    if close := difflib.get_close_matches(given, plain, n=1, cutoff=_SIMILAR):
        return [plain[close[0]]]
    if len(given) < _BEGINNING:
        return []
    near = [
        choice
        for choice in plain
        if choice.startswith(given)
        or difflib.get_close_matches(given, re.split(r"[^a-z0-9]+", choice), n=1, cutoff=_MISSPELT)
    ]
    near.sort(key=lambda choice: (not choice.startswith(given), len(choice), choice))
    return [plain[choice] for choice in near[:_NAMED]]


def _mount_point(path: str | os.PathLike[str]) -> str:
    from pathlib import Path  # only errors need it, and every start would pay for it

    folder = Path(path).absolute()
    return str(next(place for place in (folder, *folder.parents) if place.is_mount()))


@contextmanager
def translated_os_errors(action: str, path: str | os.PathLike[str], elsewhere: str = "") -> Iterator[None]:
    """Turn a full disk, a missing permission or folder met while doing `action` on `path` into errors with a remedy.

    `elsewhere` is what the user sets to have another folder, where there is such a setting.
    """
    other = f"another folder with {elsewhere}" if elsewhere else "another folder"
    try:
        yield
    except OSError as error:
        cause, remedy = _cause_and_remedy(error, path)
        if not cause:
            raise
        kind = DiskFull if error.errno in _FULL else NotWritable
        remedy = f"{remedy}, or choose {other}" if remedy else f"choose {other}"
        raise kind(f"cannot {action} {path}", cause=cause, remedy=remedy) from error


_FULL = (errno.ENOSPC, errno.EDQUOT)


def _cause_and_remedy(error: OSError, path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the cause of an error on `path`, and what to do beside choosing another folder; empty if unknown."""
    named = error.filename or path
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"no space left on the disk that is mounted at {_mount_point(path)}", "free space there"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return str(error.strerror), "change its permissions"
        case errno.ENOENT:
            return f"{named} does not exist and cannot be created", (
                "check that no other program removes it during the run"
            )
        case errno.EIO:
            return "the disk, or the network behind it, reports an input/output error", (
                "see the kernel's messages (dmesg)"
            )
        case errno.EISDIR | errno.EINVAL | errno.ELOOP:
            return f"it is no file: {error.strerror}", "remove it"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{named} is a file, not a folder", ""
    return "", ""
