"""Check of a folder's files against their published digests; a file that does not change is read only once."""

from pathlib import Path

from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.files import digest_of, write_json


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
        got = digest_of(self._folder / name, digest.partition(":")[0])
        if got == digest:
            self.remember(name, digest, state)
        return got

    def remember(self, name: str, digest: str, state: list[int] | None = None) -> None:
        """Take note of a file that was proved as it is, or as it was in `state`."""
        self._known[name] = [digest, *(state or self._state(name))]
        write_json(self._file, self._known)

    def _state(self, name: str) -> list[int]:
        status = (self._folder / name).stat()
        return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
