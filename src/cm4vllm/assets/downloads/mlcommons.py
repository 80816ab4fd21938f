"""Downloads from MLCommons' storage: a manifest names the files and their MD5, and an interrupted download goes on.

The protocol is that of mlcommons/r2-downloader: `<name>.uri` holds the URL of a folder, `<name>.md5` beside it a line
for each file in it. What only members may have answers with Cloudflare Access's login page, unless the environment
holds a service account (CF_ACCESS_CLIENT_ID and CF_ACCESS_CLIENT_SECRET) or a token of `cloudflared access token`
(CF_ACCESS_TOKEN).
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

from cm4vllm.assets.downloads.resumed_download import RefusedError, answer_of, bytes_present, fetch, part_of
from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.errors import DownloadError, UsageError, translated_os_errors
from cm4vllm.common.files import digest_of, locked, require_space, user_cache, write_json
from cm4vllm.common.folders.owned_folders import make_way
from cm4vllm.common.host_addresses import through_proxy
from cm4vllm.common.http_requests import Answer, AnswerError
from cm4vllm.common.progress import say, step, warn
from cm4vllm.common.units import size_text

#: Where the manifests lie that anybody may read.
MANIFESTS = "https://inference.mlcommons-storage.org/metadata/"
#: The variable that names another folder for downloads.
FOLDER_KEY = "CM4VLLM_DOWNLOADS"


class VerifiedDigests:
    """The digests that files below `folder` were found to have, each with the file's size, times and inode then.

    The time of the inode's last change counts, too: whoever changes a file can give it back its size and time, as rsync
    does, and not that one.

    They are remembered beside the folder, as <folder>.proofs.json: what is in it is the publisher's alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder.with_name(f"{folder.name}.proofs.json")
        self._known: dict[str, list[object]] = object_of(self._file)

    def knows(self, name: str, digest: str) -> bool:
        """Return True if a file was found to have this digest and has not changed since."""
        return self._known.get(name) == [digest, *self._state(name)]

    def prove(self, name: str, digest: str) -> str:
        """Return the digest of a file, as `<kind>:<hex>`, and remember the file where it has the expected one."""
        state = self._state(name)
        if (got := digest_of(self._folder / name, digest.partition(":")[0])) == digest:
            self.remember(name, digest, state)
        return got

    def remember(self, name: str, digest: str, state: list[int] | None = None) -> None:
        """Take note of a file that was proved as it is, or as it was in `state`."""
        self._known[name] = [digest, *(state or self._state(name))]
        write_json(self._file, self._known)

    def _state(self, name: str) -> list[int]:
        status = (self._folder / name).stat()
        return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]


@dataclass(frozen=True)
class Manifest:
    """The files of one download: `digests` maps the path of each below `base` to `md5:<hex>`.

    It is kept beside the folder of a download that is whole: such files need the storage no more.
    """

    name: str
    base: str
    digests: Mapping[str, str]
    address: str = ""


def downloads_folder(name: str) -> Path:
    """Return the folder of a download: kept between runs, so that an interrupted one goes on."""
    home = os.environ.get(FOLDER_KEY)
    return Path(home).expanduser().absolute() / name if home else user_cache(name)


def read_manifest(url: str) -> Manifest:
    """Read the manifest at `url`, or of that name among those that anybody may read; else that of an earlier download.

    Raises DownloadError when it cannot be read or is none, UsageError for an address that can be no manifest's.
    """
    address = url if "://" in url else f"{MANIFESTS}{url.removesuffix('.uri')}.uri"
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.path.endswith(".uri"):
        raise UsageError(
            f"{url} is not the address of a manifest",
            remedy="give the URL of a .uri file, as https://inference.mlcommons-storage.org lists them",
        )
    name = PurePosixPath(parts.path).stem
    try:
        return _read_manifest(name, address)
    except DownloadError as error:
        kept = object_of(_manifest_copy(downloads_folder(name)))
        if kept.get("address") != address:
            raise
        say(f"{name}: {error.what}: {error.cause}; the files that were downloaded before are used")
        return Manifest(**kept)


def _read_manifest(name: str, address: str) -> Manifest:
    base = _text(address).strip().rstrip("/")
    listed = _text(address.removesuffix(".uri") + ".md5")
    if urlsplit(base).scheme not in ("http", "https"):
        raise DownloadError(f"{address} is not a manifest", cause=f"it contains {base[:80]!r}, not the URL of a folder")
    digests: dict[str, str] = {}
    for line in filter(str.strip, listed.splitlines()):
        match = re.fullmatch(r"([0-9a-f]{32})[ *]+(?:\./)?(\S.*)", line.strip())
        if match is None or match[2].startswith("/") or ".." in match[2].split("/"):
            raise DownloadError(f"the list of files of {address} is not usable", cause=f"it contains {line[:80]!r}")
        digests[match[2]] = f"md5:{match[1]}"
    return Manifest(name, base, digests, address)


def _manifest_copy(folder: Path) -> Path:
    """Return the place of a manifest that is kept: what is in the folder is the publisher's alone."""
    return folder.with_name(f"{folder.name}.manifest.json")


def download(manifest: Manifest, folder: Path, wanted: Mapping[str, str], *, again: bool = False) -> list[Path]:
    """Have the files `wanted` (path to the digest published for it, empty for any) in `folder`; return their paths.

    Each appears under its name only when its digest is right. Those that are there are read, unless they were found
    right before and have not changed since; with `again` all are. Wrong ones are removed and downloaded. Raises
    DownloadError, DiskFull, NotWritable.
    """
    for name, digest in wanted.items():
        if (listed := manifest.digests.get(name)) is None:
            raise DownloadError(
                f"{manifest.name} has no file {name}",
                cause=f"its manifest lists {', '.join(sorted(manifest.digests)[:8]) or 'nothing'}",
            )
        if digest and digest != listed:
            raise DownloadError(
                f"{name} is not the published file",
                cause=f"{manifest.name} now lists {listed}, the catalogue knows {digest}",
                remedy="compare it with the benchmark's page; to use a file of your own, give its path as _path.FILE",
            )
    with translated_os_errors("download to", folder, FOLDER_KEY), locked(folder / ".lock"):  # a second one waits
        verified = VerifiedDigests(folder)
        _prove(manifest, folder, wanted, verified, again=again)
        missing = [name for name in wanted if not (folder / name).exists()]
        sizes = {name: _size(_address(manifest, name)) for name in missing}
        there = {name: bytes_present(part_of(folder / name)) for name in missing}
        require_space(folder, sum(sizes.values()) - sum(there.values()), manifest.name, FOLDER_KEY)
        if missing:
            _all(manifest, folder, sizes, verified)
        write_json(_manifest_copy(folder), asdict(manifest))
    return [folder / name for name in wanted]


def _prove(manifest: Manifest, folder: Path, wanted: Iterable[str], verified: VerifiedDigests, *, again: bool) -> None:
    """Compare the files on the disk with the manifest, and remove files that differ from it."""
    names = [
        name
        for name in wanted
        if (folder / name).exists() and (again or not verified.knows(name, manifest.digests[name]))
    ]
    if not names:
        return
    total = size_text(sum((folder / name).stat().st_size for name in names))
    with step(f"checking the existing files of {manifest.name}: {total}, {len(names)} files") as progress:
        for number, name in enumerate(names, start=1):
            progress.update(f"{name} ({number} of {len(names)})")
            if (got := verified.prove(name, manifest.digests[name])) != manifest.digests[name]:
                make_way(folder / name)
                warn(
                    f"{folder / name} was not the published file (digest {got}, expected {manifest.digests[name]}): "
                    "it is downloaded again"
                )


def _all(manifest: Manifest, folder: Path, sizes: Mapping[str, int], verified: VerifiedDigests) -> None:
    with step(f"downloading {manifest.name}: {size_text(sum(sizes.values()))}, {len(sizes)} files") as progress:
        for name, size in sizes.items():
            address = _address(manifest, name)
            try:
                fetch(address, folder / name, size, manifest.digests[name], _credentials(address), progress.update)
            except RefusedError as error:
                raise _refusal(address, error) from error
            verified.remember(name, manifest.digests[name])


# --- HTTP ------------------------------------------------------------------------------------------------------------


def _request(address: str, method: str = "GET") -> Answer:
    """Return the answer of an address. Raises DownloadError, also where the answer cannot be read."""
    try:
        # Not followed: MLCommons redirects only to its login page.
        return answer_of(address, _credentials(address), method)
    except RefusedError as error:
        raise _refusal(address, error) from error
    except (OSError, AnswerError) as error:
        raise DownloadError(
            f"{address} cannot be read",
            cause=str(error),
            remedy="run again when it can, or download it where it can be reached and give it as _path.#",
        ) from error


def _credentials(address: str) -> dict[str, str]:
    parts = urlsplit(address)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        return {}
    names = {
        "CF_ACCESS_CLIENT_ID": "CF-Access-Client-Id",
        "CF_ACCESS_CLIENT_SECRET": "CF-Access-Client-Secret",
        "CF_ACCESS_TOKEN": "cf-access-token",
    }
    return {header: os.environ[key] for key, header in names.items() if os.environ.get(key)}


def _text(address: str) -> str:
    return _request(address).body.decode(errors="replace")


def _size(address: str) -> int:
    length = _request(address, "HEAD").headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _refusal(address: str, error: RefusedError) -> DownloadError:
    if "cloudflareaccess.com" in error.location or (error.status in (401, 403) and not through_proxy(address)):
        return DownloadError(
            f"{address} is for MLCommons' members",
            cause=f"{error}, a login is required",
            remedy="MLCommons members: log in with `cloudflared access login URL`, then set CF_ACCESS_TOKEN to what\n"
            "`cloudflared access token --app=URL` prints; others accept the licence on the hub and use _hf.#".replace(
                "URL", address
            ),
        )
    return DownloadError(
        f"{address} cannot be downloaded",
        cause=str(error),
        remedy="https://inference.mlcommons-storage.org lists the available files",
    )


# --- files -----------------------------------------------------------------------------------------------------------


def _address(manifest: Manifest, name: str) -> str:
    return f"{manifest.base}/{quote(name)}"
