"""A submission as one file: a tar.gz whose bytes depend on the tree alone, its digest, and encryption.

mlcommons/policies, submission_rules.adoc: a submission is an encrypted tarball in a cloud storage that MLCommons gives.
Private ids: only the official checker knows them (--private-ids, from round v5.0 on: results/<system>/privateid.json);
neither policy states a rule. Its own function makes them: each follows from the system's name alone.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.errors import NotFoundError, SubmissionError, UsageError, nearest, translated_os_errors
from cm4vllm.common.files import sha256_of, write_text
from cm4vllm.common.processes import run
from cm4vllm.submission.inspection import inspect_tree
from cm4vllm.submission.source import Source, extract_checker

__all__ = ["ENCRYPTION", "Packed", "pack", "private_ids"]

#: The programs that encrypt, each with the ending of its files.
ENCRYPTION = {"age": ".age", "gpg": ".gpg"}
_DIVISIONS = ("open", "closed", "network")
_PRIVATE_ID = (
    "from submission_checker.utils import generate_private_id as made; import json, sys\n"
    "print(json.dumps({name: made(name) for name in sys.argv[1:]}))"
)


@dataclass(frozen=True)
class Packed:
    """An archive with its SHA-256, and the encrypted one where it was asked for."""

    archive: Path
    sha256: str
    encrypted: Path | None = None
    encrypted_sha256: str = ""


def pack(
    tree: Path, archive: Path, *, program: str = "", recipients: tuple[str, ...] = (), ids: dict[str, str] | None = None
) -> Packed:
    """Write the divisions of a tree into `archive` (tar.gz), and its digest beside it; encrypt it for `recipients`.

    The tree stays as it is; `ids` are the private ids of systems, which are put into the archive alone. Raises
    SubmissionError where there is no tree, and where a file of it may not be published; UsageError where of program and
    recipients one is given; NotFoundError without the program that encrypts.
    """
    files = list(_files(tree))
    if not files:
        raise SubmissionError(
            f"no submission in {tree}",
            cause=f"no file below {', '.join(_DIVISIONS)}",
            remedy="build it first: --tags=generate,mlperf,inference,submission",
        )
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
        raise NotFoundError(f"{program} not found on PATH", remedy=f"install it, or give --encrypt={_other(program)}")
    inspect_tree(tree)
    added = _id_files(tree, ids or {})
    partial = archive.with_name(f"{archive.name}.partial")
    with translated_os_errors("write", archive, "--archive"):
        try:
            archive.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as out:
                _write(out, tree, files, added)
            partial.replace(archive)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        digest = _stated(archive)
    if not program:
        return Packed(archive, digest)
    encrypted = archive.with_name(archive.name + ENCRYPTION[program])
    _encrypt(program, recipients, archive, encrypted)
    return Packed(archive, digest, encrypted, _stated(encrypted))


def private_ids(tree: Path, source: Source) -> dict[str, str]:
    """Return the private id of each system of a tree, as the official checker makes it."""
    systems = sorted({path.name for path in tree.glob("*/*/results/*") if path.is_dir()})
    with tempfile.TemporaryDirectory(prefix="mlperf-checker-") as folder:
        tools, _ = extract_checker(source, Path(folder))
        done = run([sys.executable, "-B", "-c", _PRIVATE_ID, *systems], cwd=tools)
    if not done.ok:
        raise SubmissionError(
            "the official checker made no private ids",
            cause=done.output.strip()[-400:],
            remedy="give the sources of another commit: --inference_src",
        )
    found: dict[str, str] = json.loads(done.output)
    return found


def _files(tree: Path) -> Iterator[Path]:
    for division in _DIVISIONS:
        yield from sorted(path for path in (tree / division).rglob("*") if path.is_file())


def _id_files(tree: Path, ids: dict[str, str]) -> dict[str, bytes]:
    """Return the files of private ids, by their path in the tree."""
    return {
        f"{path.relative_to(tree).as_posix()}/privateid.json": json.dumps(
            {path.name: ids[path.name]}, indent=4
        ).encode()
        for path in tree.glob("*/*/results/*")
        if path.name in ids
    }


def _write(out: io.BufferedWriter, tree: Path, files: list[Path], added: dict[str, bytes]) -> None:
    """Write the archive: in the order of names, without times, owners and compression headers of this machine."""
    sources: dict[str, Path | bytes] = {path.relative_to(tree).as_posix(): path for path in files} | dict(added)
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=9, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(sources):
            source = sources[name]
            entry = tarfile.TarInfo(name)
            if isinstance(source, bytes):
                entry.size, entry.mode = len(source), 0o644
                tar.addfile(entry, io.BytesIO(source))
            else:
                entry.size, entry.mode = source.stat().st_size, 0o755 if source.stat().st_mode & 0o100 else 0o644
                with source.open("rb") as file:
                    tar.addfile(entry, file)


def _stated(path: Path) -> str:
    """Write a file's digest beside it, in the form of sha256sum, and return it."""
    digest = sha256_of(path)
    write_text(path.with_name(f"{path.name}.sha256"), f"{digest}  {path.name}\n")
    return digest


def _encrypt(program: str, recipients: tuple[str, ...], archive: Path, encrypted: Path) -> None:
    partial = encrypted.with_name(f"{encrypted.name}.partial")
    partial.unlink(missing_ok=True)
    named = [word for one in recipients for word in ("--recipient", one)]
    words = {
        "age": ["age", "--encrypt", *named, "--output", str(partial), str(archive)],
        "gpg": [
            "gpg",
            "--batch",
            "--yes",
            "--trust-model",
            "always",
            "--encrypt",
            *named,
            "--output",
            str(partial),
            str(archive),
        ],
    }
    done = subprocess.run(words[program], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        partial.unlink(missing_ok=True)
        raise SubmissionError(
            f"{program} could not encrypt {archive.name}",
            cause=done.stderr.strip(),
            remedy="give a public key that it knows with --recipient",
        )
    partial.replace(encrypted)


def _other(program: str) -> str:
    return next(name for name in ENCRYPTION if name != program)
