"""An archive of vLLM for a machine without network, without the kernels that its GPU does not use.

    python docs/tools/pack_vllm.py vllm-….whl [WHEEL…] --archive=vllm.tar.xz [--without=moe,fa2] [--capability=9.0]
        [--most=MIB]

The wheels are vLLM's and those of packages that the other machine lacks. `--without` names libraries of vLLM:

    moe        mixtures of experts
    fa2        FlashAttention 2, which Hopper GPUs do not use
    mla        FlashMLA, of deepseek models
    deep-gemm  DeepGEMM, of FP8 mixtures of experts
    qutlass    QuTLASS, of FP4 weights
    rust       the server written in Rust, which cm4vllm does not start

`--capability` also empties, within the libraries that stay, the machine code of other GPUs: code of the same major
version and of no newer minor one is kept, or where there is none, the newest PTX that is not newer (CUDA C++
Programming Guide, "Binary Compatibility" and "PTX Compatibility"). On the other machine:

    python3 -m venv --system-site-packages vllm
    tar -xf vllm.tar.xz -C vllm/lib/python3*/site-packages
    python benchmarks/gpu.py --vllm_python=vllm/bin/python

packed.json in the archive says what was packed and left out. It has no RECORD files: pip does not manage what is in it.
"""

import argparse
import fnmatch
import io
import json
import lzma
import struct
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from cm4vllm.common.files import sha256_of

#: The libraries of vLLM's wheels from 0.26.0 to 0.32.0 that one model on one GPU may not need.
LIBRARIES = {
    "moe": ("vllm/_moe_C*",),
    "fa2": ("vllm/vllm_flash_attn/_vllm_fa2_C*",),
    "mla": ("vllm/_flashmla*",),
    "deep-gemm": ("vllm/third_party/deep_gemm/_C*",),
    "qutlass": ("vllm/_qutlass_C*",),
    "rust": ("vllm/vllm-rs",),
}
#: The libraries that were left out where such an archive ran on a GPU (docs/measurements.md, one NVIDIA H100).
WITHOUT = ("moe", "fa2")
MIB = 2**20
#: The strength of xz: more takes minutes, and gains few per cent of machine code.
_PRESET = 3
_PACKED = "packed.json"

# A fat binary, as cuobjdump lists it: a header of 16 bytes (magic, version, its size, size of the rest), then entries,
# each with its kind, the sizes of its header and its code, and after 28 bytes the capability times 10.
_MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
_HEADER, _ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ12xI")
_PTX, _MACHINE_CODE = 1, 2


class Entry(NamedTuple):
    """A piece of code in a fat binary, for GPUs of a capability (90 for 9.0)."""

    kind: int
    capability: int
    begin: int
    size: int


@dataclass
class Packed:
    """The contents of an archive: wheels with their SHA-256, files left out and code that was emptied, in bytes."""

    wheels: dict[str, str] = field(default_factory=dict)
    capability: str = ""
    left_out: dict[str, int] = field(default_factory=dict)
    emptied: dict[str, int] = field(default_factory=dict)


def fat_binaries(library: bytes | bytearray) -> Iterator[list[Entry]]:
    """Yield the entries of each fat binary in a library; what has its magic number alone is none."""
    at = library.find(_MAGIC)
    while at >= 0:
        *_, size = _HEADER.unpack_from(library, at)
        begin, end = at + _HEADER.size, at + _HEADER.size + size
        entries = list(_entries(library, begin, end)) if end <= len(library) else []
        if entries:
            yield entries
        at = library.find(_MAGIC, end if entries else at + 1)


def _entries(library: bytes | bytearray, begin: int, end: int) -> Iterator[Entry]:
    while begin + _ENTRY.size <= end:
        kind, _, header, size, capability = _ENTRY.unpack_from(library, begin)
        if header < _ENTRY.size or begin + header + size > end:
            return
        yield Entry(kind, capability, begin + header, size)
        begin += header + size


def unused(entries: Sequence[Entry], capability: int) -> list[Entry]:
    """Return the entries of a fat binary that a GPU does not use."""
    codes = [entry for entry in entries if entry.kind == _MACHINE_CODE]
    same = [each for each in codes if each.capability // 10 == capability // 10 and each.capability <= capability]
    texts = [entry for entry in entries if entry.kind == _PTX and entry.capability <= capability]
    newest = max((entry.capability for entry in texts), default=0)
    used = same or [entry for entry in texts if entry.capability == newest]
    return [entry for entry in entries if entry.kind in (_PTX, _MACHINE_CODE) and entry not in used]


def emptied(library: bytes, capability: int) -> tuple[bytes, int]:
    """Return a library with zeros in place of code that a GPU does not use, and the bytes of that code.

    The headers stay, so that whoever loads it finds all else where it was.
    """
    changed, count = bytearray(library), 0
    for entries in list(fat_binaries(library)):
        for entry in unused(entries, capability):
            changed[entry.begin : entry.begin + entry.size] = bytes(entry.size)
            count += entry.size
    return bytes(changed), count


def pack(wheels: Sequence[Path], archive: Path, without: Sequence[str], capability: str) -> Packed:
    """Write the archive of the wheels, and return what is in it."""
    patterns = [pattern for name in without for pattern in LIBRARIES[name]]
    packed = Packed(capability=capability)
    wanted = int(capability.replace(".", "")) if capability else 0
    with lzma.open(archive, "wb", preset=_PRESET) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for wheel in wheels:
            packed.wheels[wheel.name] = sha256_of(wheel)
            with zipfile.ZipFile(wheel) as whole:
                for info in whole.infolist():
                    name = _installed_name(info.filename)
                    if not name or info.is_dir():
                        continue
                    if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                        packed.left_out[name] = info.file_size
                        continue
                    data = whole.read(info)
                    if wanted and _MAGIC in data:
                        data, packed.emptied[name] = emptied(data, wanted)
                    _add(tar, name, data, executable=bool(info.external_attr >> 16 & 0o100))
        _add(tar, _PACKED, json.dumps(asdict(packed), indent=2).encode(), executable=False)
    return packed


def _installed_name(name: str) -> str:
    """Return the place of a wheel's file below site-packages; empty for what is not put there.

    Raises ValueError for a name that leads out of it.
    """
    first, *rest = PurePosixPath(name).parts or ("",)
    if first == "/" or ".." in rest or first == "..":
        raise ValueError(f"the wheel has a file {name!r}, which leads out of its folder")
    if first.endswith(".data"):
        return "/".join(rest[1:]) if rest and rest[0] in ("purelib", "platlib") else ""
    return "" if first.endswith(".dist-info") and rest == ["RECORD"] else name


def _add(tar: tarfile.TarFile, name: str, data: bytes, *, executable: bool) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o755 if executable else 0o644
    tar.addfile(entry, io.BytesIO(data))


def main(words: Sequence[str] | None = None) -> int:
    """Pack, and print what was left out; return 1 where the archive is larger than --most."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("--archive", type=Path, required=True, metavar="FILE", help="a .tar.xz file")
    parser.add_argument(
        "--without", type=_library_names, default=WITHOUT, metavar="NAME,…", help=f"of {', '.join(LIBRARIES)}"
    )
    parser.add_argument("--capability", type=_capability, metavar="M.N", help="of the GPU; all otherwise")
    parser.add_argument("--most", type=float, metavar="MIB", help="the archive must not be larger")
    asked = parser.parse_args(words)
    packed = pack(asked.wheels, asked.archive, asked.without, asked.capability or "")
    for title, sizes in (("left out", packed.left_out), ("emptied", packed.emptied)):
        for name, size in sizes.items():
            print(f"{title}: {name}, {size / MIB:.1f} MiB")
    size = asked.archive.stat().st_size
    print(f"{asked.archive}: {size / MIB:.1f} MiB, SHA-256 {sha256_of(asked.archive)}")
    if asked.most is not None and size > asked.most * MIB:
        print(f"it is larger than {asked.most:g} MiB: leave out more, or name the GPU by --capability", file=sys.stderr)
        return 1
    return 0


def _library_names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in LIBRARIES]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(LIBRARIES)}")
    return names


def _capability(text: str) -> str:
    major, dot, minor = text.partition(".")
    if not (dot and major.isdigit() and minor.isdigit() and len(minor) == 1):
        raise argparse.ArgumentTypeError(f"{text!r} is no capability, as 9.0 of an H100")
    return text


if __name__ == "__main__":
    sys.exit(main())
