"""The last check before a tree leaves the machine: every file is read, and no file is written afterwards."""

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from cm4vllm.common.checking.private_text import KEYS, SECRETS, Private, found_in
from cm4vllm.common.checking.private_words import PrivateWord, first_private
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import sha256_of, text_of
from cm4vllm.common.programs.own_program import program_files
from cm4vllm.records.published_server import words_of
from cm4vllm.rules import tree_layouts
from cm4vllm.submission.published_program import program_folders, published_files


def inspect_tree(tree: Path, words: list[PrivateWord] | None = None) -> None:
    """Read every file of a submission tree. Raises SubmissionError where one names this machine, or holds a secret.

    `words` are the private words of the campaign that made it; without them they are read from the folder beside it.
    """
    folders = {folder for layout in tree_layouts() for folder in tree.glob(f"*/*/{layout.program}")}
    programs = {
        f"{version.relative_to(tree).as_posix()}/": _public_digests() | published_files(version)
        for folder in folders
        for version in program_folders(folder)
    }
    refuse_private(tree, words_of(tree.parent) if words is None else words, programs)


def refuse_private(
    folder: Path, words: Collection[PrivateWord], programs: Mapping[str, frozenset[str]] = MappingProxyType({})
) -> None:
    """Raise SubmissionError where a file below `folder`, or the name of one, holds a private word or a secret.

    Every file is read. `programs` are the folders of programs in it, each with the digests of the files that are public
    already: a name or an address in such a file, which is this machine's too, is an example's.
    """
    secrets = [word for word in words if word.kind == "secret"]
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).as_posix()
        known = next((digests for place, digests in programs.items() if inside.startswith(place)), None)
        public = None if known is None or not path.is_file() else sha256_of(path) in known
        sought = secrets if public else words
        if word := first_private(inside, sought):
            _refuse(f"the name of {inside}", word)
        if path.is_file():
            try:
                content = text_of(path, 4 * 2**30)  # an accuracy log of long answers has one or two GiB
            except OSError as error:
                raise SubmissionError(
                    f"{inside} cannot be searched for private words",
                    cause=error.strerror or str(error),
                    remedy="truncate the logs of the tree, or remove what the rules do not ask for",
                ) from error
            _refuse_content(inside, content, sought, [SECRETS] if public is None else [] if public else [KEYS])


def _refuse_content(inside: str, content: str, words: Collection[PrivateWord], forms: Collection[Private]) -> None:
    lower = content.lower()
    present = [word for word in words if word.word.lower() in lower]
    if not present and not any(found_in(content, forms)):
        return
    for number, line in enumerate(content.splitlines(), 1):
        if named := first_private(line, present):
            _refuse(f"{inside}, line {number},", named)
        if any(found_in(line, forms)):
            _refuse_secret(f"{inside}, line {number},")
    if named := first_private(content, [word for word in present if "\n" in word.word]):
        _refuse(inside, named)


def _refuse(where: str, word: PrivateWord) -> None:
    if word.kind == "secret":
        _refuse_secret(where, word.shown)
    raise SubmissionError(
        f"no submission: {where} names this machine's {word.kind}",
        cause=f"{word.shown} would be published",
        remedy="take it out of what the file is made from (system file, --hw_name, folders, user.conf); logs are made "
        "again with --rerun",
    )


def _refuse_secret(where: str, subject: str = "text in the form of a key, a token or a password") -> None:
    raise SubmissionError(
        f"no submission: {where} contains a secret",
        cause=f"{subject} would be published",
        remedy="take it out of what the file is made from (system file, --hw_name, user.conf), and replace the secret "
        "where it is in use: files of this run contain it; logs are made again with --rerun",
    )


@cache
def _public_digests() -> frozenset[str]:
    """Return the digests of the program's files that others can have already."""
    return frozenset(sha256_of(file.path) for file in program_files() if file.published)
