"""Encryption of an archive while it is written: what is not encrypted never reaches the disk."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from cm4vllm.common.errors import NotFoundError, SubmissionError, UsageError, nearest
from cm4vllm.common.processes import die_with_parent, exit_in_words

__all__ = ["ENCRYPTION", "encrypting", "require_encryption"]

#: The programs that encrypt, each with the ending of its files.
ENCRYPTION = {"age": ".age", "gpg": ".gpg"}
#: The words that have each read the archive from its standard input. What is packed is compressed already.
_WORDS = {
    "age": ["age", "--encrypt"],
    "gpg": ["gpg", "--batch", "--yes", "--trust-model", "always", "--compress-algo", "none", "--encrypt"],
}


def require_encryption(program: str, recipients: tuple[str, ...]) -> None:
    """Raise UsageError where of program and recipients one is given, NotFoundError without the program."""
    if program and program not in ENCRYPTION:
        raise UsageError(f"--encrypt={program} is not supported", remedy=nearest(program, ENCRYPTION))
    if program and not recipients:
        raise UsageError(
            f"--encrypt={program} is given without --recipient",
            cause="an archive is encrypted with the public key of the one who is to read it",
            remedy="give that key: --recipient=KEY",
        )
    if recipients and not program:
        raise UsageError(
            f"--recipient={','.join(recipients)} is given without --encrypt",
            cause="the archive would not be encrypted",
            remedy=f"name the program that encrypts: --encrypt={' or --encrypt='.join(ENCRYPTION)}",
        )
    if program and shutil.which(program) is None:
        other = next(name for name in ENCRYPTION if name != program)
        raise NotFoundError(f"{program} not found on PATH", remedy=f"install it, or give --encrypt={other}")


@contextmanager
def encrypting(program: str, recipients: tuple[str, ...], path: Path) -> Iterator[IO[bytes]]:
    """Give a stream; what is written to it stands encrypted in `path` once the block has ended well.

    Raises SubmissionError where the program fails. It ends with this process, however that ends.
    """
    named = [word for recipient in recipients for word in ("--recipient", recipient)]
    words = [*_WORDS[program], *named, "--output", str(path)]
    whole = False
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=messages, stderr=messages, process_group=0, preexec_fn=die_with_parent
        )
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended before, and says why
                with cast(IO[bytes], process.stdin) as stream:
                    yield stream
                whole = True
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        if status or not whole:
            messages.seek(0)
            said = messages.read().decode(errors="replace").strip()
            raise SubmissionError(
                f"{program} could not encrypt {path.name.removesuffix('.partial')}",
                cause=f"{exit_in_words(status)}: {said}",
                remedy="give a public key that it knows with --recipient",
            )
