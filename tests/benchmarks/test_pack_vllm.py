"""vLLM packed for a machine without network: what is left out, what is emptied, and what is installed from it."""

import json
import struct
import subprocess
import sys
import tarfile
import zipfile

import pytest

import pack_vllm
from cm4vllm.common.files import sha256_of
from pack_vllm import emptied, fat_binaries, main, unused

PTX, CODE = 1, 2


def fat_binary(*entries):
    """Return a fat binary of entries, each of its kind, its capability times 10 and its code."""
    body = b"".join(
        struct.pack("<HHIQ12xI", kind, 0x101, 64, len(code), capability).ljust(64, b"\0") + code
        for kind, capability, code in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


BOTH = fat_binary((CODE, 80, b"ampere"), (CODE, 90, b"hopper"), (PTX, 90, b"text"))
OLD = fat_binary((CODE, 75, b"turing"), (PTX, 75, b"text75"), (PTX, 80, b"text80"), (PTX, 120, b"text120"))


@pytest.mark.parametrize(
    ("capability", "left"), [(90, [(CODE, 90)]), (80, [(CODE, 80)]), (86, [(CODE, 80)]), (75, []), (100, [(PTX, 90)])]
)
def test_code_of_the_same_major_version_is_kept_or_the_newest_ptx(capability, left):
    (entries,) = fat_binaries(b"ELF" + BOTH)
    dropped = unused(entries, capability)
    assert [(entry.kind, entry.capability) for entry in entries if entry not in dropped] == left


def test_only_code_that_is_not_used_is_emptied_and_nothing_moves():
    library = b"before" + BOTH + b"between" + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**40) + OLD + b"after"
    changed, count = emptied(library, 90)
    expected = library
    for code in (b"ampere", b"turing", b"text75", b"text120"):
        expected = expected.replace(code, bytes(len(code)))
    # PTX beside code of the GPU itself is not used; that of 8.0 is all that the second fat binary has for it.
    place = library.index(b"text", library.index(b"hopper"))
    expected = expected[:place] + bytes(4) + expected[place + 4 :]
    assert changed == expected and count == 6 + 4 + 6 + 6 + 7
    assert b"hopper" in changed and b"text80" in changed


@pytest.fixture
def wheel(tmp_path):
    """Write a wheel of a vLLM with three libraries."""
    path = tmp_path / "vllm-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as whole:
        whole.writestr("vllm/__init__.py", "__version__ = '1.2'\n")
        whole.writestr("vllm/_C.abi3.so", BOTH)
        whole.writestr("vllm/_moe_C.abi3.so", BOTH)
        whole.writestr("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", BOTH)
        whole.writestr("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", BOTH)
        whole.writestr("vllm-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 1.2\n")
        whole.writestr("vllm-1.2.dist-info/RECORD", "vllm/_moe_C.abi3.so,,\n")
        whole.writestr("vllm-1.2.data/purelib/beside.py", "here = True\n")
        whole.writestr("vllm-1.2.data/scripts/vllm", "#!python\n")
    return path


def test_what_was_packed_is_imported_where_it_is_unpacked(wheel, tmp_path, capsys):
    archive, site = tmp_path / "vllm.tar.xz", tmp_path / "site"
    assert main([str(wheel), f"--archive={archive}", "--capability=9.0"]) == 0
    assert "left out: vllm/_moe_C.abi3.so" in capsys.readouterr().out
    site.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", site], check=True)
    names = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert names == {
        "beside.py",
        "packed.json",
        "vllm/__init__.py",
        "vllm/_C.abi3.so",
        "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
        "vllm-1.2.dist-info/METADATA",
    }
    assert json.loads((site / "packed.json").read_text()) == {
        "wheels": {wheel.name: sha256_of(wheel)},
        "capability": "9.0",
        "left_out": {name: len(BOTH) for name in ("vllm/_moe_C.abi3.so", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so")},
        "emptied": dict.fromkeys(("vllm/_C.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"), 10),
    }
    assert (site / "vllm/_C.abi3.so").read_bytes() == emptied(BOTH, 90)[0]
    code = "import importlib.metadata as m, vllm, beside; print(m.version('vllm'), vllm.__version__, beside.here)"
    done = subprocess.run([sys.executable, "-c", code], cwd=site, capture_output=True, text=True, check=False)
    assert done.stdout == "1.2 1.2 True\n", done.stderr


def test_without_a_capability_libraries_are_as_they_were(wheel, tmp_path):
    assert main([str(wheel), f"--archive={tmp_path / 'all.tar.xz'}", "--without="]) == 0
    with tarfile.open(tmp_path / "all.tar.xz") as tar:
        assert all(tar.extractfile(name).read() == BOTH for name in tar.getnames() if name.endswith(".so"))
        assert len(tar.getnames()) == 8


def test_an_archive_that_is_too_large_ends_with_1(wheel, tmp_path, capsys):
    assert main([str(wheel), f"--archive={tmp_path / 'a.tar.xz'}", "--most=0.0001"]) == 1
    assert "--capability" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--without=moe,fa4", "--capability=90", "--capability=9.x"])
def test_other_names_and_capabilities_are_refused(wheel, tmp_path, flag, capsys):
    with pytest.raises(SystemExit) as caught:
        main([str(wheel), f"--archive={tmp_path / 'a.tar.xz'}", flag])
    assert caught.value.code == 2 and flag.partition("=")[2].rpartition(",")[2] in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../out.py", "/out.py", "vllm/../../out.py"])
def test_a_wheel_with_a_file_outside_of_its_folder_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as whole:
        whole.writestr(name, "x")
    with pytest.raises(ValueError, match="leads out of its folder"):
        pack_vllm.pack([tmp_path / "x.whl"], tmp_path / "a.tar.xz", [], "")
