"""Every failure a user can meet, in one tree: `CmError` and the kinds under it.

The code of a kind is the exit code of `cm`, its docstring the meaning (docs/exit-codes.md). 1, 2 and 16 are those of
the public script engine for the same failures.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar


class CmError(Exception):
    """A failure that has no code of its own.

    It says what failed, why, and what to do about it. `what` is one line. `cause` and `remedy` may be empty only where
    nothing is known or can be done. `state` is also given to a program that asked for JSON, under `new_state`.
    """

    exit_code = 1
    _kinds: ClassVar[dict[int, type[CmError]]] = {}

    def __init_subclass__(cls, code: int = 0) -> None:
        if code:
            cls.exit_code = code
            cls._kinds[code] = cls

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
        kind = cls._kinds.get(exit_code, CmError)
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
            lines.append(f"  cause:  {_indent(self.cause)}")
        if self.remedy:
            lines.append(f"  remedy: {_indent(self.remedy)}")
        return printable("\n".join(lines))


#: Lines of a cause or a remedy after its first begin with this.
_INDENT = "\n          "
_PARTS = re.compile(r"(.*?)(?:\n  cause:  (.*?))?(?:\n  remedy: (.*))?", re.DOTALL)


def _indent(text: str) -> str:
    return text.rstrip().replace("\n", _INDENT)


class UsageError(CmError, code=20):
    """An unknown flag, variation, model, scenario or value."""


class ModelError(CmError, code=21):
    """The model is not one that can be served or described."""


class DatasetError(CmError, code=22):
    """The dataset is unreadable or does not fit the benchmark."""


class ServerUnreachable(CmError, code=30):
    """Nothing answers at the server's address."""


class ServerUnsuitable(CmError, code=31):
    """A server answers, but it cannot be measured."""


class PortInUse(CmError, code=32):
    """Another program listens on the server's port."""


class ServerDied(CmError, code=33):
    """The server ended unexpectedly."""


class ServerNotReady(CmError, code=34):
    """The server did not serve a completion in time."""


class ServerStuck(CmError, code=35):
    """The server process is up but has stopped responding."""


class DiskFull(CmError, code=40):
    """No space left where the results or the assets go."""


class NotWritable(CmError, code=41):
    """No permission to write there; or what a finished command printed was not written."""


class InstallError(CmError, code=42):
    """A package or an environment could not be installed."""


class SourceUnavailable(CmError, code=43):
    """A source repository could not be fetched."""


class DownloadError(CmError, code=44):
    """A model or a dataset could not be downloaded completely."""


class LimitTooLow(CmError, code=45):
    """The machine allows too few open files, local ports, too little memory for a run."""


class EnvironmentBroken(CmError, code=46):
    """vLLM generates no token with an environment that was made before."""


class RunFailed(CmError, code=50):
    """Requests failed, or the LoadGen process ended unexpectedly."""


class InvalidResult(CmError, code=51):
    """The run ended well, but the rules call its result invalid."""


class ClockChanged(CmError, code=52):
    """The clock was set during a run, whose times then mean nothing."""


class RunIncomplete(CmError, code=53):
    """A client of MLPerf Endpoints ended before all samples were answered."""


class SubmissionError(CmError, code=60):
    """The submission cannot be built from these records."""


class CheckerFailed(CmError, code=61):
    """The official checker refuses the submission."""


class ResultsDiffer(CmError, code=62):
    """A result that was measured again is not the same."""


class RecipeError(CmError, code=3):
    """A recipe is wrong: its meta, its customize.py."""


class NativeCommandError(CmError, code=2):
    """A recipe's command ended with an error."""


class NotFoundError(CmError, code=16):
    """No recipe, variation or cache entry matches."""


class Interrupted(CmError, code=130):
    """The user stopped the run (Ctrl-C, SIGINT)."""


def nearest(word: str, choices: Iterable[str], listing: str = "") -> str:
    """Return a hint that names the choices that were probably meant, or lists them when none is near.

    `listing` is a sentence that says how to see all of them; it stands in place of a list of more than a few.
    """
    known = sorted({str(choice) for choice in choices})  # plain words, also out of an enumeration
    if others := _of_other_numbers(word, known):
        return f"known: {', '.join(others)}"
    if meant := [repr(choice) for choice in _probable_choices(word, known)]:
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


def _probable_choices(word: str, known: Sequence[str]) -> list[str]:
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
        if error.errno not in _CAUSES:
            raise
        is_full = error.errno in _FULL
        cause, remedy = _CAUSES[error.errno]
        raise (DiskFull if is_full else NotWritable)(
            f"cannot {action} {path}",
            cause=cause.format(_mount_point(path) if is_full else error.filename or path, reason=error.strerror),
            remedy=f"{remedy}, or choose {other}" if remedy else f"choose {other}",
        ) from error


_FULL = (errno.ENOSPC, errno.EDQUOT)
#: The cause of an error of the system, and what to do beside choosing another folder.
_CAUSES = {
    **dict.fromkeys(_FULL, ("no space left on the disk that is mounted at {}", "free space there")),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), ("{reason}", "change its permissions")),
    errno.ENOENT: ("{} does not exist and cannot be created", "check that no other program removes it during the run"),
    errno.EIO: (
        "the disk, or the network behind it, reports an input/output error",
        "see the kernel's messages (dmesg)",
    ),
    **dict.fromkeys((errno.EISDIR, errno.EINVAL, errno.ELOOP), ("it is no file: {reason}", "remove it")),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), ("{} is a file, not a folder", "")),
}
