"""Python environments of their own for programs whose packages must not meet ours.

The user's settings of pip that hold for them are those of where packages come from: others would have pip install
elsewhere than into the environment, something else, or nothing.
"""

import configparser
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from cm4vllm.common.errors import DiskFull, InstallError
from cm4vllm.common.files import text_of, write_text
from cm4vllm.common.host_addresses import through_proxy
from cm4vllm.common.programs.processes import Completed, run

#: Names the user's own file; the null device, that no file is read.
_FILE = "PIP_CONFIG_FILE"
_PREFIX = "PIP_"
#: Indexes, connections, the cache, whether packages may come built or as source, and what pip prints.
_KEPT = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        *("INDEX_URL", "PYPI_URL", "EXTRA_INDEX_URL", "NO_INDEX", "FIND_LINKS", "TRUSTED_HOST", "KEYRING_PROVIDER"),
        *(
            "PROXY",
            "CERT",
            "CLIENT_CERT",
            "TIMEOUT",
            "DEFAULT_TIMEOUT",
            "RETRIES",
            "RESUME_RETRIES",
            "USE_FEATURE",
            "USE_DEPRECATED",
        ),
        *("CACHE_DIR", "NO_CACHE_DIR", "ONLY_BINARY", "NO_BINARY", "PREFER_BINARY"),
        *("DISABLE_PIP_VERSION_CHECK", "NO_INPUT", "NO_COLOR", "PROGRESS_BAR", "ROOT_USER_ACTION"),
    )
)


def pip_settings() -> tuple[dict[str, str], list[str]]:
    """Return the variables of the environment to run pip with, and the names of the settings that are not used.

    A variable of pip that is not to be used is empty, which pip takes as none. Raises InstallError for a file of
    settings that pip could not read either.
    """
    given: dict[str, tuple[str, str]] = {}
    read = [_read(path) for path in _pip_settings_files()]
    for section in ("global", "install"):
        for parser in read:
            given |= {_variable(name): (value, f"{section}.{name}") for name, value in _items(parser, section)}
    own = {name: value for name, value in os.environ.items() if name.startswith(_PREFIX) and name != _FILE}
    given |= {name: (value, name) for name, value in own.items()}
    variables = {name: value for name, (value, _) in given.items() if name in _KEPT} | {_FILE: os.devnull}
    unused = [shown for name, (value, shown) in given.items() if value and name not in _KEPT]
    return dict.fromkeys(own, "") | variables, sorted(unused)


def _variable(name: str) -> str:
    return _PREFIX + name.upper().replace("-", "_")


def _pip_settings_files() -> list[Path]:
    """Return pip's files of settings, each of which holds before those ahead of it (pip, docs/topics/configuration)."""
    own = os.environ.get(_FILE, "")
    if own == os.devnull:
        return []
    shared = [Path(folder) / "pip" for folder in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)]
    users = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "pip"
    user = [] if own and Path(own).exists() else [Path("~/.pip").expanduser(), users]
    files = [folder / "pip.conf" for folder in (*shared, Path("/etc"), *user, Path(sys.prefix))]
    return [path for path in (*files, *([Path(own)] if own else ())) if path.is_file()]


def _read(path: Path) -> configparser.RawConfigParser:
    """Return the settings in a file of pip. Raises InstallError if it cannot be read."""
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text_of(path), str(path))
    except (OSError, ValueError, configparser.Error) as error:
        raise InstallError(
            f"pip's settings in {path} cannot be read", cause=str(error), remedy="mend the file, or remove it"
        ) from error
    return parser


def _items(parser: configparser.RawConfigParser, section: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of a section by the names of pip's options, without their dashes."""
    for name, value in parser.items(section) if parser.has_section(section) else ():
        yield name.replace("_", "-").removeprefix("--"), value


#: Where the PyTorch project keeps its CPU builds; PyPI has only those for GPUs.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


#: The names that settings of pip have in uv, and those that change nothing of what is installed.
_UV_NAMES = {
    "INDEX_URL": "UV_DEFAULT_INDEX",
    "EXTRA_INDEX_URL": "UV_INDEX",
    "FIND_LINKS": "UV_FIND_LINKS",
    "CERT": "SSL_CERT_FILE",
}
_WITHOUT_EFFECT = frozenset(
    ("CONFIG_FILE", "TIMEOUT", "DEFAULT_TIMEOUT", "RETRIES", "DISABLE_PIP_VERSION_CHECK", "NO_INPUT", "NO_COLOR")
)


def make_environment(folder: Path, python: Path | str = sys.executable) -> Path:
    """Make an empty virtual environment of `python` in `folder` and return its Python. Raises InstallError."""
    # Without a pip of its own: ours installs into it, and ensurepip alone would take as long as PyTorch.
    require_success(
        run([python, "-I", "-m", "venv", "--clear", "--without-pip", folder]), "a virtual environment cannot be made"
    )
    return folder / "bin" / "python"


def site_packages(environment: Path) -> Path:
    """Return the folder of a virtual environment's packages."""
    return next((environment / "lib").glob("python3*/site-packages"))


def pip(
    python: Path,
    words: Sequence[str],
    log: Path | None = None,
    action: Literal["install", "uninstall", "freeze", "download"] = "install",
) -> Completed:
    """Run our pip on the environment of `python`; what it prints goes to `log` too.

    Of the user's settings those of indexes and connections are used (`pip_settings`). The environment's own commands
    come first on PATH: a build backend that is installed there may be one.
    """
    # Not compiled: of thousands of modules few are ever imported.
    more = {
        "install": ["--no-compile", "--progress-bar=off"],
        "uninstall": ["--yes"],
        "freeze": [],
        "download": ["--progress-bar=off"],
    }[action]
    return run(
        [
            sys.executable,
            "-P",
            "-m",
            "pip",
            f"--python={python}",
            action,
            "--disable-pip-version-check",
            "--no-input",
            *more,
            *words,
        ],
        log=log,
        env={
            **pip_settings()[0],
            "PYTHONPATH": "",
            "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)]),
        },
    )


def pinned_requirements(lock: Path) -> dict[str, str]:
    """Return each requirement that a requirements file pins, by its name: one line with its marker and its hashes."""
    text = re.sub(r"\\\n\s*", "", lock.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if "==" in line and not line.startswith("#")]
    return {line.partition("==")[0].strip(): line for line in lines}


def install_pinned(python: Path, lock: Path, log: Path, index_words: Sequence[str] = ()) -> Completed:
    """Install what a requirements file pins, and nothing else: a file with none of the pinned hashes is refused.

    uv installs in a tenth of pip's time; where it is missing, has no equivalent of a setting of the user's pip, or
    fails, pip installs.
    """
    words = ["--no-deps", "--require-hashes", "-r", str(lock), *index_words]
    uv, env = Path(sys.executable).with_name("uv"), _uv_settings(pip_settings()[0])
    if uv.is_file() and env is not None:
        # All files have pinned hashes, so that no index can give another one under the same version.
        # No configuration: a file in the present folder may have uv install elsewhere.
        options = ["--quiet", "--no-config", f"--python={python}", "--index-strategy=unsafe-best-match"]
        command: list[str | Path] = [uv, "pip", "install", *options, *words]
        done = run(command, log=log, env=env)
        if done.ok:
            return done
    return pip(python, words, log)


def _uv_settings(settings: Mapping[str, str]) -> dict[str, str] | None:
    """Return settings of pip as uv reads them; None where uv has no equivalent of one."""
    given = {name.removeprefix("PIP_"): value for name, value in settings.items() if value}
    if not given.keys() <= {*_UV_NAMES, *_WITHOUT_EFFECT}:
        return None
    return {name: given[own] for own, name in _UV_NAMES.items() if own in given} | {"PYTHONPATH": ""}


def index_options(index_url: str, extra_index_url: str) -> list[str]:
    """Return pip's options for indexes of the user's own, of which either may be empty."""
    urls = {"--index-url": index_url, "--extra-index-url": extra_index_url}
    return [word for option, url in urls.items() if url for word in (option, url)]


def resolution_failure(index: str) -> str:
    """Return why the host of a package index has no address, after one question; empty where it has one.

    It is empty too where a proxy is asked for the host.
    """
    address = urlsplit(index)
    if not address.hostname or getproxies().get(address.scheme) or pip_settings()[0].get("PIP_PROXY"):
        return ""
    try:
        socket.getaddrinfo(address.hostname, address.port or 443)
    except (OSError, UnicodeError) as error:
        return f"{address.hostname}: {getattr(error, 'strerror', '') or error}"
    return ""


def require_resolved(index: str, own_index: str = "") -> None:
    """Raise InstallError where the host of a package index has no address: pip would ask again for each package."""
    if reason := resolution_failure(index):
        given = " or ".join(filter(None, (own_index, "`pip config`")))
        raise InstallError(
            f"the package index {index} cannot be reached",
            cause=reason,
            remedy=f"run the same command again where the machine has a network: what is installed once is used "
            f"without it; a proxy is named by the variable https_proxy, an index in your own network by {given}",
        )


def install_torch(python: Path, lock: Path, log: Path, index_words: Sequence[str] = (), own_index: str = "") -> None:
    """Install the PyTorch that `lock` pins from where the user's own pip looks, else from the PyTorch project's index.

    `index_words` are pip's options for an index of the user's own, `own_index` is how they are given. What is pinned
    is written beside `log`. Raises InstallError.
    """
    torch = pinned_requirements(lock)["torch"]
    alone = log.with_suffix(".txt")
    write_text(alone, torch + "\n")
    if not install_pinned(python, alone, log, index_words).ok:
        require_resolved(TORCH_CPU_INDEX, own_index)
        words = [*index_words, "--extra-index-url", TORCH_CPU_INDEX]
        require_success(install_pinned(python, alone, log, words), f"{torch.split()[0]} cannot be installed", own_index)


def require_success(done: Completed, title: str, own_index: str = "") -> Completed:
    """Return a command that ended well. Raises InstallError with pip's own words, or the last lines of another command.

    `own_index` is the flag by which the user gives an index of their own, where there is one beside pip's settings.
    """
    if done.ok:
        return done
    if other := _other_files(done.output):
        raise InstallError(
            title,
            cause=f"a file has another hash than the pinned one: {other}",
            remedy="the index, a proxy or pip's cache gave another file than the one that was published: give an index "
            f"that has it, with {own_index or '`pip config`'}, or empty the cache with `pip cache purge`",
        )
    given = " or ".join(filter(None, (own_index, "`pip config`")))
    if unreachable := _no_connection(done.output):
        raise InstallError(
            title,
            cause=f"pip has no connection to the package index: {unreachable}{through_proxy('https://pypi.org')}",
            remedy="run the same command again where the machine has a network: what is installed once is used without "
            f"it; a proxy is named by the variable https_proxy, an index in your own network by {given}",
        )
    if full := _FULL.search(done.output):
        raise DiskFull(
            title,
            cause=full[0].strip(),
            remedy="free space on the disk of that file; TMPDIR and XDG_CACHE_HOME choose other folders for what is "
            "downloaded and unpacked meanwhile",
        )
    for sign, remedy in _REMEDIES.items():
        if sign in done.output:
            raise InstallError(title, cause=done.tail(12), remedy=remedy)
    said = [line[:600] for line in done.output.splitlines() if line.startswith("ERROR:")][-4:]
    hint = f"these are pip's words; an index of your own is given with {given}\n" if said else ""
    raise InstallError(
        title, cause="\n".join(said) or done.tail(12), remedy=f"{hint}the command: {shlex.join(done.argv)}"
    )


#: The line with a file for which a disk or a quota has no space.
_FULL = re.compile(r"^.*(?:No space left on device|Disk quota exceeded).*$", re.MULTILINE)

#: What to do where no process or thread can be started (EAGAIN of fork(2)).
_TOO_FEW = "the limit of processes of this user (`ulimit -u`) is too low: raise it"
#: What to do, by the words that pip or the system has for a failure.
_REMEDIES = {
    "externally-managed-environment": "use a virtual environment: python3 -m venv ~/cm && ~/cm/bin/pip install cmind, "
    "then run cm from ~/cm/bin",
    **dict.fromkeys(("can't start new thread", "Resource temporarily unavailable"), _TOO_FEW),
    "Permission denied": "the named file belongs to another user: use a virtual environment of your own",
}

#: The lines of pip about its last attempt to reach an index: the reason ends the exception's text.
_BROKEN = re.compile(r"Retry\(total=0,.{0,200}after connection broken by '\w{1,80}\((.{0,2000})\)': \S+$", re.MULTILINE)


def _no_connection(said: str) -> str:
    """Return the reason why pip reached no index, where it then found no file; empty for other failures.

    With a constraint in pip's settings it says ResolutionImpossible of a package that no index has.
    """
    broken = _BROKEN.findall(said)
    if not broken or not ("from versions: none" in said or "ResolutionImpossible" in said):
        return ""
    return str(broken[-1]).rpartition("connection: ")[2].strip("'\"")[:300]


def _other_files(said: str) -> str:
    """Return pip's words on files with another hash than the pinned ones, with that hash; empty if there are none."""
    _, refused, rest = said.partition("DO NOT MATCH THE HASHES")
    lines = [" ".join(line.split()) for line in rest.splitlines()[1:] if line.startswith("    ")]
    return " ".join(line for line in lines if not line.startswith("Expected")) if refused else ""
