"""Digests of bytes and of files, quick enough for what is checked at every run."""

import os

try:
    from _blake2 import blake2b  # what hashlib gives by this name, without loading OpenSSL at every start
except ImportError:
    from hashlib import blake2b


# Up to this size all of a file counts, above it both ends: a model's weights are not read again at every run.
_WHOLE_BYTES = 8 << 20
_END_BYTES = 1 << 20


def digest_of(data: bytes) -> str:
    """Return the BLAKE2b digest of `data`, 256 bits in hexadecimal."""
    return str(blake2b(data, digest_size=32).hexdigest())


def content_digest(path: str) -> str:
    """Return the BLAKE2b digest of a file; for a large file, of its size, its beginning and its end. Raises OSError."""
    digest = blake2b(digest_size=32)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _WHOLE_BYTES:
            digest.update(file.read())
        else:
            digest.update(str(size).encode())
            digest.update(file.read(_END_BYTES))
            file.seek(-_END_BYTES, os.SEEK_END)
            digest.update(file.read())
    return str(digest.hexdigest())
