"""Models of the Hugging Face hub, in the hub's own cache on this machine: resumed, proved, and usable without the hub.

The token of a gated model comes from HF_TOKEN in the environment alone, and is written nowhere.
"""

import fnmatch
import hashlib
import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cm4vllm.assets.downloads.resumed_download import fetch
from cm4vllm.common.errors import CmError, DiskFull, DownloadError, translated_os_errors
from cm4vllm.common.files import require_space, write_text
from cm4vllm.common.folders.owned_folders import make_way
from cm4vllm.common.host_addresses import through_proxy
from cm4vllm.common.progress import say, step

#: The files that a hub's model needs beside its weights.
SPARE_BYTES = 2**30
#: Weights in other formats, which vLLM does not need where there are safetensors.
_LEFT_OUT = ["*.bin", "*.gguf", "*.pth", "*.h5", "*.msgpack", "*.onnx", "original/*", "metal/*", "*.pt"]
#: The ends of the names of weights in formats that are not downloaded.
_WEIGHTS = (".gguf", ".bin", ".pth", ".pt", ".h5", ".msgpack", ".onnx")
#: Seconds that a plan waits for the hub's list of a model's files.
_QUESTION_S = 5.0
#: The branch of a model for which no revision is given.
_BRANCH = "main"


def page_of(name: str) -> str:
    """Return the address of a model's page on the hub, where its licence is accepted."""
    return f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/{name}"


def snapshot(name: str, revision: str) -> Path:
    """Return the folder of a model in the hub's cache, which has the name of its commit; download what is missing.

    Every new file is proved by its digest.

    Raises DownloadError, DiskFull, NotWritable.
    """
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    token = os.environ.get("HF_TOKEN") or False
    try:
        return _download(name, revision, cache, token)
    except CmError:
        raise
    except Exception as error:
        # The hub's client lets its HTTP library's own errors through, and which library that is changes by version.
        if (refusal := _refusal(error, name, revision, with_token=bool(token))) is not None:
            raise refusal from error
        if (cached := _cached_folder(name, revision, cache)) is not None:
            say(f"{name}: the hub is not reachable; the copy in its cache on this machine is used")
            return cached
        raise DownloadError(
            f"the model {name} cannot be downloaded",
            cause=f"{_first_line(error)}{through_proxy(page_of(name))}",
            remedy="run again: what was downloaded is kept\n"
            "or download it where the hub is reachable and give the folder: --tags=...,_path.<folder>\n"
            "or set HF_ENDPOINT to a mirror",
        ) from error


def download_bytes(name: str, revision: str = "") -> int:
    """Return the bytes of the files that `snapshot` downloads, by the hub's list. Raises DownloadError."""
    token = os.environ.get("HF_TOKEN") or False
    try:
        return sum(file.size or 0 for file in _wanted(_listed(name, revision, token, _QUESTION_S)))
    except Exception as error:  # as in `snapshot`
        refusal = _refusal(error, name, revision, with_token=bool(token))
        raise refusal or DownloadError(f"the hub cannot be asked about {name}", cause=_first_line(error)) from error


def is_cached(name: str, revision: str = "") -> bool:
    """Return True if a whole copy of a model is in the hub's cache on this machine."""
    from huggingface_hub import constants

    return _cached_folder(name, revision, Path(constants.HF_HUB_CACHE)) is not None


def _listed(name: str, revision: str, token: str | bool, timeout_s: float) -> Any:
    from huggingface_hub import HfApi

    return HfApi(token=token).model_info(name, revision=revision or None, files_metadata=True, timeout=timeout_s)


def _wanted(info: Any) -> list[Any]:
    """Return the files of a model that are downloaded."""
    return [
        file
        for file in info.siblings or []
        if not any(fnmatch.fnmatch(file.rfilename, pattern) for pattern in _LEFT_OUT)
    ]


def _download(name: str, revision: str, cache: Path, token: str | bool) -> Path:
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    info = _listed(name, revision, token, 20)
    wanted = _wanted(info)
    if not any(file.rfilename.endswith(".safetensors") for file in wanted):
        weights = [file.rfilename for file in info.siblings or [] if file.rfilename.endswith(_WEIGHTS)]
        raise DownloadError(
            f"the model {name} has no weights in safetensors",
            cause=f"its files are {', '.join(weights[:3]) or 'of other kinds'}",
            remedy="name the repository that has the model as safetensors; GGUF files were made of such a one",
        )
    missing = [
        file
        for file in wanted
        if not isinstance(try_to_load_from_cache(name, file.rfilename, cache_dir=cache, revision=info.sha), str)
    ]
    if needed := sum(file.size or 0 for file in missing):
        require_space(cache, needed + SPARE_BYTES, f"the model {name}", "HF_HOME")
    home = cache / f"models--{name.replace('/', '--')}"
    utils: Any = importlib.import_module("huggingface_hub.utils")  # its typing hides what it exports
    utils.disable_progress_bars()
    with _disk(home), step(f"downloading {name}") as progress:
        _large(name, str(info.sha), missing, token, home / "blobs", progress.update)
        folder = Path(
            snapshot_download(name, revision=info.sha, cache_dir=cache, token=token, ignore_patterns=_LEFT_OUT)
        )
    _prove(name, folder, wanted)
    if (asked := revision or _BRANCH) != info.sha:  # by which the hub's client finds the commit without the hub
        write_text(home / "refs" / asked, str(info.sha))
    return folder


def _refusal(error: Exception, name: str, revision: str, *, with_token: bool) -> DownloadError | None:
    """Return the error for a model that the hub itself refuses; None where the refusal is not the hub's."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    refusals: tuple[tuple[type[Exception], str, str], ...] = (
        (
            GatedRepoError,  # a RepositoryNotFoundError, too
            f"the model {name} is gated",
            f"accept its licence at {page_of(name)} with your account, make a read token in the "
            "account's settings,\nand set HF_TOKEN to it in the environment"
            + ("; the token that is set now has no access" if with_token else ""),
        ),
        (
            RevisionNotFoundError,
            f"the model {name} has no revision {revision!r}",
            "give a branch, tag or commit with --revision",
        ),
        (
            RepositoryNotFoundError,
            f"the hub has no model {name}, or it is private",
            "check its name; set HF_TOKEN in the environment for a private one",
        ),
    )
    for kind, message, remedy in refusals:
        if isinstance(error, kind):
            return DownloadError(message, cause=_first_line(error), remedy=remedy)
    return None


def _large(
    name: str, commit: str, files: Iterable[Any], token: str | bool, blobs: Path, tell: Callable[[str], None]
) -> None:
    """Put the large files where the hub's client keeps them.

    It would download each again after an interruption; ours continues a partial download.
    """
    from huggingface_hub import hf_hub_url

    for file in files:
        sha256 = getattr(file.lfs, "sha256", None) if file.lfs else None
        if sha256 and not (blobs / sha256).exists():
            fetch(
                hf_hub_url(name, file.rfilename, revision=commit),
                blobs / sha256,
                file.size,
                f"sha256:{sha256}",
                {"Authorization": f"Bearer {token}"} if token else {},
                tell,
            )


def _cached_folder(name: str, revision: str, cache: Path) -> Path | None:
    """Return the folder of a model in the cache; without a note of its branch, the one commit that is there whole."""
    from huggingface_hub import snapshot_download

    home = cache / f"models--{name.replace('/', '--')}"
    known = sorted(path.name for path in home.glob("snapshots/*"))
    is_whole = not any(home.glob("blobs/*.incomplete")) and not any(home.glob("blobs/*.part"))
    for asked in (revision or _BRANCH, *(known if not revision and len(known) == 1 and is_whole else ())):
        with suppress(Exception):
            return Path(
                snapshot_download(
                    name, revision=asked, cache_dir=cache, local_files_only=True, ignore_patterns=_LEFT_OUT
                )
            )
    return None


def _prove(name: str, folder: Path, files: Iterable[Any]) -> None:
    """Compare all files with the hub's own digests: SHA-256 for large files, git's SHA-1 for small ones.

    Old files too: other programs also write to the hub's cache.
    """
    for file in files:
        path = folder / file.rfilename
        large = getattr(file.lfs, "sha256", None) if file.lfs else None
        expected = large or file.blob_id
        if not expected or not path.is_file():
            continue
        with path.open("rb") as opened:
            if large:
                got = hashlib.file_digest(opened, "sha256").hexdigest()
            else:
                blob = b"blob %d\0" % path.stat().st_size + opened.read()
                got = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
        if got != expected:
            blob = path.resolve()
            if path.is_symlink() and blob.parent == (folder.parents[1] / "blobs").resolve():
                blob.unlink()  # the hub's own, which it names by the digest
                path.unlink()
            else:
                make_way(path)
            raise DownloadError(
                f"{file.rfilename} of {name} has a wrong digest, and was removed",
                cause=f"it is {got}, the hub names {expected}",
                remedy="run again; if that does not help, a proxy or mirror changes the file",
            )


@contextmanager
def _disk(repository: Path) -> Iterator[None]:
    """Report a full disk as DiskFull, and remove unfinished files to free their space; whole files stay."""
    before = set(repository.glob("blobs/*.incomplete"))  # of other programs, which may run
    try:
        with translated_os_errors("download to", repository, "HF_HOME"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Not enough free disk space")  # reported by require_space, as an error
            yield
    except DiskFull:
        for part in set(repository.glob("blobs/*.incomplete")) - before:
            part.unlink(missing_ok=True)
        raise


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
