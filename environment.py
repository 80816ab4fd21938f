"""Makes the environment in which `make` runs all its programs, and installs what requirements files pin.

    python3 -I environment.py [--this-python] FOLDER REQUIREMENTS...

It is known whole by its record, FOLDER/environment.json, which is written last and names the place, the kind of Python
and the digests of the files that were installed. Any other environment is made again: one that is half made, was moved
or copied, or whose Python has been replaced; with `--this-python` also that of another Python than the present one.

No syntax is used here that Python 3.6 does not know: an old Python is refused with a remedy, or finds a whole
environment. What is installed, and how: src/cm4vllm/common/programs/checkout_environment.py.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, whose module the oldest Pythons lack
if TYPE_CHECKING:
    from typing import Any, NoReturn

LEAST = (3, 11, 2)
RECORD = "environment.json"
#: Which compiled modules a Python can import: this differs between versions, builds and processors.
KIND = "import sysconfig; print(sysconfig.get_config_var('SOABI'), end='')"
#: A shell changes them in the first line of an installed command; `:` ends a folder of PATH.
REFUSED = '$"`\\:\n'


def main(words: "list[str]") -> None:
    """Have the environment and, in it, the packages of the requirements files that the command line names."""
    this_python = words[:1] == ["--this-python"]
    folder, requirements = words[this_python], words[this_python + 1 :]
    with open(__file__, "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("another make installs packages into {}/: waiting until it has ended".format(folder), flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        record = read_record(folder)
        reason = why_again(folder, record, this_python)
        digests = {name: digest(name) for name in requirements}
        if reason or not digests.items() <= record["installed"].items():
            require_surroundings(folder)
            sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "src"))
            from cm4vllm.common.programs.checkout_environment import install

            install(
                folder,
                os.path.join(folder, RECORD),
                record,
                reason,
                base=base(),
                kind=KIND,
                digests=digests,
                lock=lock.fileno(),
            )


def read_record(folder: str) -> "dict[str, Any]":
    """Return the record of an environment; empty where there is none that can be read."""
    try:
        with open(os.path.join(folder, RECORD), encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def why_again(folder: str, record: "dict[str, Any]", this_python: bool) -> str:
    """Return the reason for which an environment must be made, or made again; empty where it is whole."""
    if not os.path.isdir(folder):
        return "it is missing"
    if not record.get("whole"):
        return "its installation did not end"
    if record["place"] != os.path.abspath(folder):
        return "it was made at {}".format(record["place"])
    try:
        words = [os.path.join(folder, "bin", "python"), "-I", "-c", KIND]
        kind = subprocess.check_output(words, universal_newlines=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return "its Python, {}, does not start".format(record["base"])
    if kind != record["kind"]:
        return "it was made for {}, and its Python is {} now".format(record["kind"], kind)
    if this_python and record["base"] != base():
        return "it was made by {}, and {} is asked for".format(record["base"], base())
    return ""


def base() -> str:
    """Return the program of the present Python, outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def digest(name: str) -> str:
    """Return the SHA-256 of a file."""
    with open(name, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def require_surroundings(folder: str) -> None:
    """Refuse, before anything is installed, surroundings in which the installed programs could not run."""
    place = os.path.abspath(folder)
    if sys.version_info < LEAST:
        least, present = (".".join(map(str, version[:3])) for version in (LEAST, sys.version_info))
        refuse("Python {} or newer is needed, this is {}".format(least, present), "make PYTHON=python3.12")
    for character in REFUSED:
        if character in place:
            refuse("the path {} has the character {!r}".format(place, character), "move the checkout to another path")
    if os.statvfs(".").f_flag & os.ST_NOEXEC:
        refuse("no program in {} can be started".format(place), "move the checkout to a disk that is mounted with exec")
    if not os.path.isabs(os.path.expanduser("~")):
        refuse("HOME is not set, and this user has no home folder", "export HOME=FOLDER, with one that can be written")


def refuse(cause: str, remedy: str) -> "NoReturn":
    """End with an error."""
    sys.exit("error: {}\n  remedy: {}".format(cause, remedy))


if __name__ == "__main__":
    main(sys.argv[1:])
