"""A submission as one file: a tar.gz whose bytes depend on the tree alone, its digest, and encryption.

mlcommons/policies, submission_rules.adoc: a submission is an encrypted tarball in a cloud storage that MLCommons gives.
Private ids: only the official checker knows them (--private-ids, from round v5.0 on: results/<system>/privateid.json);
neither policy states a rule. Its own function makes them: each follows from the system's name alone.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, cast

from cm4vllm.common import input_types
from cm4vllm.common.errors import NotFoundError, SubmissionError, UsageError, nearest, translated_os_errors
from cm4vllm.common.files import sha256_of
from cm4vllm.common.folders.owned_folders import staged_file, write_noted
from cm4vllm.common.folders.ownership_notes import entries
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.processes import die_with_parent, exit_in_words, run
from cm4vllm.common.progress import say, warn
from cm4vllm.common.settings import Key, Settings
from cm4vllm.common.terminal_text import first_of
from cm4vllm.submission.checker.source import Source, SourceInputs, extract_checker
from cm4vllm.submission.privacy_check import inspect_tree

_DIVISIONS = ("open", "closed", "network")
#: The most bytes of a file and of a whole submission: packing so many takes minutes.
_MOST_BYTES, _MOST_ALTOGETHER = 2**30, 2**32
#: The number of links that an error names.
_NAMED = 10
_PRIVATE_ID = (
    "from submission_checker.utils import generate_private_id as made; import json, sys\n"
    "print(json.dumps({name: made(name) for name in sys.argv[1:]}))"
)
#: The programs that encrypt, each with the ending of its files.
ENCRYPTION = {"age": ".age", "gpg": ".gpg"}
#: The words that have each read the archive from its standard input. What is packed is compressed already.
_WORDS = {
    "age": ["age", "--encrypt"],
    "gpg": ["gpg", "--batch", "--yes", "--trust-model", "always", "--compress-algo", "none", "--encrypt"],
}


@dataclass(frozen=True)
class Packed:
    """The SHA-256 of an archive, and where it lies: as it is (`archive`), encrypted, or both."""

    archive: Path | None
    sha256: str
    encrypted: Path | None = None
    encrypted_sha256: str = ""


class PackSettings(SourceInputs, frozen=True, kw_only=True):
    """The tree, its archive, and what encrypts it: `recipients` are separated by commas.

    With `private_ids` the archive has the private id of each system, as the official checker makes it.
    """

    tree: input_types.SubmissionDir
    archive: input_types.SubmissionArchive = ""
    private_ids: Annotated[bool, Key("CM_MLPERF_SUBMISSION_PRIVATE_IDS")] = False
    program: Annotated[str, Key("CM_MLPERF_SUBMISSION_ENCRYPT")] = ""
    recipients: Annotated[str, Key("CM_MLPERF_SUBMISSION_RECIPIENT")] = ""
    keep_plain: Annotated[bool, Key("CM_MLPERF_SUBMISSION_KEEP_PLAIN")] = False


class PackExports(Settings, frozen=True, kw_only=True):
    """The exports of pack,mlperf,submission."""

    archive: input_types.SubmissionArchive
    sha256: Annotated[str, Key("CM_MLPERF_SUBMISSION_ARCHIVE_SHA256")]
    encrypted: Annotated[str, Key("CM_MLPERF_SUBMISSION_ENCRYPTED")]


def pack_submission(settings: PackSettings) -> PackExports:
    """Pack a tree as `pack` does, and print the digests and the private ids."""
    tree = Path(settings.tree).absolute()
    ids = private_ids(tree, settings.provided) if settings.private_ids else {}
    packed = pack(
        tree,
        Path(settings.archive or f"{tree}.tar.gz").absolute(),
        program=settings.program,
        recipients=tuple(filter(None, map(str.strip, settings.recipients.split(",")))),
        ids=ids,
        keep_plain=settings.keep_plain,
    )
    say(f"archive: {packed.archive or 'written encrypted only'}\nsha256: {packed.sha256}")
    for system, private_id in ids.items():
        say(f"private id of {system}: {private_id}")
    if packed.encrypted:
        say(f"encrypted: {packed.encrypted}\nsha256: {packed.encrypted_sha256}")
    return PackExports(archive=str(packed.archive or ""), sha256=packed.sha256, encrypted=str(packed.encrypted or ""))


def pack(
    tree: Path,
    archive: Path,
    *,
    program: str = "",
    recipients: tuple[str, ...] = (),
    ids: dict[str, str] | None = None,
    keep_plain: bool = False,
) -> Packed:
    """Write the divisions of a tree into `archive` (tar.gz), and its digest beside it.

    With `program` it is encrypted for `recipients` while it is written: the file beside `archive` is the only one then,
    unless `keep_plain`. The tree stays as it is; `ids` are the private ids of systems, which are put into the archive
    alone. Raises SubmissionError where there is no tree, where it holds a link, and where a file of it may not be
    published; UsageError where of program and recipients one is given; NotFoundError without the program.
    """
    if not (files := _files(tree)):
        raise SubmissionError(
            f"no submission in {tree}",
            cause=f"no file below {', '.join(_DIVISIONS)}",
            remedy="build it first: --tags=generate,mlperf,inference,submission",
        )
    require_encryption(program, recipients)
    inspect_tree(tree)
    added = {
        f"{path.relative_to(tree).as_posix()}/privateid.json": json.dumps({path.name: private_id}, indent=4).encode()
        for path in tree.glob("*/*/results/*")
        if (private_id := (ids or {}).get(path.name))
    }
    encrypted = archive.with_name(archive.name + ENCRYPTION[program]) if program else None
    plain = archive if keep_plain or encrypted is None else None
    with translated_os_errors("write", archive, "--archive"), contextlib.ExitStack() as opened:
        archive.parent.mkdir(parents=True, exist_ok=True)
        enter = opened.enter_context
        streams: list[IO[bytes]] = [enter(enter(staged_file(plain)).open("wb"))] if plain else []
        if encrypted:
            streams.append(enter(encrypting(program, recipients, enter(staged_file(encrypted)))))
        out = _Digested(streams)
        _write(out, tree, files, added)
    digest = out.digest.hexdigest()
    if plain is not None:
        _state(plain, digest)
    elif archive.exists():
        warn(f"{archive} of an earlier command is not encrypted, and stays beside {archive.name}{ENCRYPTION[program]}")
    return Packed(plain, digest, encrypted, _state(encrypted, sha256_of(encrypted)) if encrypted else "")


def private_ids(tree: Path, source: Source) -> dict[str, str]:
    """Return the private id of each system of a tree, as the official checker makes it."""
    systems = sorted({path.name for path in tree.glob("*/*/results/*") if path.is_dir()})
    with scratch_folder("mlperf-checker-") as folder:
        tools, _ = extract_checker(source, folder)
        done = run([sys.executable, "-P", "-B", "-c", _PRIVATE_ID, *systems], cwd=tools, env={"PYTHONPATH": str(tools)})
    if not done.ok:
        raise SubmissionError(
            "the official checker made no private ids",
            cause=done.output.strip()[-400:],
            remedy="give the sources of another commit: --inference_src",
        )
    return dict(json.loads(done.output))


def _files(tree: Path) -> list[str]:
    """Return the names of the files of a tree's divisions. Raises SubmissionError for a link, and for what is no file.

    A link is neither followed nor left out: what it names may be a private file, and a result behind one would be
    missing in the archive. Files so large that to read and to compress them takes hours are refused: one with holes
    may be.
    """
    listed = entries(tree).items() if tree.is_dir() else ()
    sizes = {name: at[0] for name, at in sorted(listed) if at and name.partition("/")[0] in _DIVISIONS}
    strange = [
        f"{name} is a link to {path.readlink()}" if path.is_symlink() else f"{name} is a pipe, a socket or a device"
        for name in sizes
        if (path := tree / name).is_symlink() or not path.is_file()
    ]
    if strange:
        raise SubmissionError(
            f"{tree} holds what is no file of its own",
            cause=first_of(strange, _NAMED, "\n"),
            remedy="put a copy of the file or folder in the place of each link, or remove it",
        )
    large = [f"{name} has {size / 2**30:.1f} GiB" for name, size in sizes.items() if size > _MOST_BYTES]
    if large or sum(sizes.values()) > _MOST_ALTOGETHER:
        raise SubmissionError(
            f"{tree} is too large for an archive",
            cause=first_of(large or [f"its files have {sum(sizes.values()) / 2**30:.1f} GiB altogether"], _NAMED, "\n"),
            remedy="truncate its logs, or remove what the rules do not ask for; the limits are 1 GiB a file and 4 GiB "
            "altogether",
        )
    return list(sizes)


def _write(out: io.RawIOBase, tree: Path, files: list[str], added: dict[str, bytes]) -> None:
    """Write the archive: in the order of names, without times, owners and compression headers of this machine."""
    sources: dict[str, Path | bytes] = {**{name: tree / name for name in files}, **added}
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


class _Digested(io.RawIOBase):
    """A stream that writes to several streams, and computes the SHA-256 of the written bytes."""

    def __init__(self, streams: Sequence[IO[bytes]]) -> None:
        self.streams = streams
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write to all streams, and add the bytes to the digest."""
        self.digest.update(data)
        for stream in self.streams:
            stream.write(data)
        return memoryview(data).nbytes


def _state(path: Path, digest: str) -> str:
    """Write a file's digest beside it, in the form of sha256sum, and return it."""
    write_noted(path.with_name(f"{path.name}.sha256"), f"{digest}  {path.name}\n")
    return digest


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
    """Yield a stream; what is written to it stands encrypted in `path` once the block has ended well.

    Raises SubmissionError where the program fails. It ends with this process, however that ends.
    """
    words = [*_WORDS[program], *(f"--recipient={recipient}" for recipient in recipients), f"--output={path}"]
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
            raise SubmissionError(
                f"{program} could not encrypt {path.name.removesuffix('.partial')}",
                cause=f"{exit_in_words(status)}: {messages.read().decode(errors='replace').strip()}",
                remedy="give a public key that it knows with --recipient",
            )
