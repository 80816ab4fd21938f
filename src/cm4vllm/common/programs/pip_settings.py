"""The user's settings of pip that hold for environments of cm4vllm: those of where packages come from.

Others would have pip install elsewhere than into the environment, something else, or nothing.
"""

import configparser
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from cm4vllm.common.errors import InstallError
from cm4vllm.common.files import text_of

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
    read = [_read(path) for path in _files()]
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


def _files() -> list[Path]:
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
