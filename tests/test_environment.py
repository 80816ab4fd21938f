"""The environment that `make` installs into is whole or made again, whatever happened to it and wherever it lies."""

import hashlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from functools import partial
from pathlib import Path

import pytest

from cm4vllm.common.errors import InstallError
from cm4vllm.common.programs import processes
from cm4vllm.common.programs.checkout_environment import _install
from commands import need

ROOT = Path(__file__).resolve().parents[1]
#: To make an environment takes several seconds: `make test` makes those that differ most.
long = partial(pytest.param, marks=pytest.mark.long)
TINY = "tiny_for_test-1.2-py3-none-any.whl"


def checkout_at(folder):
    """Make a checkout of what makes an environment, with a package to install that needs no index."""
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "src" / "cm4vllm" / "common", folder / "src" / "cm4vllm" / "common")
    shutil.copy(ROOT / "src" / "cm4vllm" / "__init__.py", folder / "src" / "cm4vllm")
    for name in ("Makefile", "environment.py"):
        shutil.copy(ROOT / name, folder)
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny-for-test\nVersion: 1.2\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(folder / TINY, "w") as wheel:
        wheel.writestr("tiny_for_test.py", "")
        for name, text in info.items():
            wheel.writestr(f"tiny_for_test-1.2.dist-info/{name}", text)
    digest = hashlib.sha256((folder / TINY).read_bytes()).hexdigest()
    (folder / "requirements.txt").write_text(f"./{TINY} --hash=sha256:{digest}\n")
    (folder / "requirements-test.txt").write_text("# none\n")
    (folder / "requirements-tools.txt").write_text("# none: pip installs\n")
    return folder


@pytest.fixture
def checkout(tmp_path):
    return checkout_at(tmp_path / "checkout")


def environ(**more):
    """Return the environment of a user whose cache is their own, without files of pip's settings; not that of tests."""
    left = ("PYTHONPATH", "CM_REPOS", "MAKEFLAGS", "MAKELEVEL", "PYTHON")
    kept = {key: value for key, value in os.environ.items() if key not in left}
    return kept | {"PIP_CONFIG_FILE": os.devnull} | more


def make(folder, *words, before=(), target=".venv/.installed", **env):
    done = subprocess.run(
        [*before, "make", target, f"PYTHON={sys.executable}", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environ(**env),
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def is_whole(folder):
    """Run the environment from elsewhere: its Python finds the installed package, and that of the checkout."""
    code = "import cm4vllm, tiny_for_test; print(cm4vllm.__file__)"
    said = subprocess.check_output([folder / ".venv/bin/python", "-I", "-c", code], text=True, cwd="/")
    assert said.strip() == str(folder / "src/cm4vllm/__init__.py")
    subprocess.run([folder / ".venv/bin/pip", "--version"], check=True, capture_output=True)
    return True


def require_made_again_after_a_kill(checkout, at, locale):
    """Kill the installation when the file `at` of the environment appears; the next one makes a whole environment."""
    begun = subprocess.Popen(
        ["make", ".venv/.installed", f"PYTHON={sys.executable}"],
        cwd=checkout,
        env=environ(LC_ALL=locale),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not os.path.lexists(checkout / ".venv" / at):
        assert begun.poll() is None
        time.sleep(0.001)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    code, said = make(checkout, LC_ALL=locale)
    assert code == 0 and "making .venv/ again: its installation did not end" in said, said
    assert "installing the packages of requirements.txt" in said
    python = [checkout / ".venv/bin/python", "-c", "import cm4vllm, tiny_for_test"]
    for utf8 in ("0", "1"):
        subprocess.run(python, env=environ(LC_ALL=locale, PYTHONUTF8=utf8, PYTHONCOERCECLOCALE="0"), check=True)


def test_what_is_whole_is_left_as_it_is_and_what_was_killed_moved_or_broken_is_made_again(tmp_path):
    checkout = checkout_at(tmp_path / "meine Läufe 日本")
    require_made_again_after_a_kill(checkout, "bin/python", "C")
    assert is_whole(checkout) and make(checkout) == (0, "")
    for file in ("requirements-test.txt", "requirements.txt"):  # the second after a change
        installing = f"installing the packages of {file} into .venv/\n"
        assert make(checkout, target=".venv/.installed-test") == (0, installing)
        with (checkout / "requirements.txt").open("a") as pins:
            pins.write("# another version\n")
    python = checkout / ".venv/bin/python"
    python.unlink()
    python.symlink_to(tmp_path / "removed/python3")
    program, folder = runpy.run_path(str(checkout / "environment.py")), str(checkout / ".venv")
    assert "does not start" in program["why_again"](folder, program["read_record"](folder), False)
    moved = checkout.rename(tmp_path / "moved")
    elsewhere, conf = tmp_path / "elsewhere", tmp_path / "pip.conf"
    conf.write_text(f"[global]\ntarget = {elsewhere}\n")
    code, said = make(moved, PIP_CONFIG_FILE=str(conf), PIP_DRY_RUN="1")
    assert code == 0 and f"making .venv/ again: it was made at {checkout}/.venv" in said
    assert is_whole(moved) and not elsewhere.exists()


@pytest.mark.long
@pytest.mark.parametrize(("at", "locale"), [("pyvenv.cfg", "POSIX"), ("bin/pip", "en_US.ISO-8859-1")])
def test_what_a_kill_left_half_made_is_made_again_also_in_a_path_beyond_ascii_without_a_locale(tmp_path, at, locale):
    require_made_again_after_a_kill(checkout_at(tmp_path / "meine Läufe 日本"), at, locale)


@pytest.mark.long
def test_a_python_without_pip_is_named_and_asked_again(checkout, tmp_path):
    need("unshare")
    stdlib = subprocess.check_output(
        [sys.executable, "-c", "import ensurepip; print(ensurepip.__path__[0])"], text=True
    )
    code, said = make(checkout, before=mounted(stdlib.strip(), "rw"))
    assert code and "a virtual environment cannot be made" in said
    assert make(checkout)[0] == 0 and is_whole(checkout)


@pytest.mark.long
def test_a_copy_and_an_environment_of_another_python_are_made_again(checkout, tmp_path):
    make(checkout)
    copy = tmp_path / "a copy"
    subprocess.run(["cp", "-a", checkout, copy], check=True)
    code, said = make(copy)
    assert code == 0 and f"making .venv/ again: it was made at {checkout}/.venv" in said and is_whole(copy)
    record = json.loads((checkout / ".venv/environment.json").read_text())
    (checkout / ".venv/environment.json").write_text(json.dumps({**record, "kind": "cpython-310-x86_64-linux-gnu"}))
    code, said = make(checkout)
    assert code == 0 and is_whole(checkout) and "it was made for cpython-310-" in said


@pytest.mark.long
def test_another_python_makes_it_again_only_where_it_is_asked_for(checkout):
    others = filter(None, map(shutil.which, ("python3.12", "python3.13", "python3.14", "python3.11")))
    own = Path(os.path.realpath(sys.executable))
    other = next((path for path in others if Path(os.path.realpath(path)) != own and _is_usable(path)), None)
    if other is None:
        pytest.skip("no second Python on PATH")
    make(checkout)
    env = {"cwd": checkout, "env": environ(), "capture_output": True, "text": True, "check": True}
    assert subprocess.run(["make", ".venv/.installed"], **env).stdout == ""
    assert "is asked for" in subprocess.run(["make", ".venv/.installed", f"PYTHON={other}"], **env).stdout
    assert is_whole(checkout)


def _is_usable(python):
    return subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", [long("folder"), long("file"), long("link"), long("of an earlier version")])
def test_what_make_did_not_make_is_moved_aside_and_what_an_earlier_version_made_is_made_again(checkout, tmp_path, kind):
    theirs, aside = checkout / ".venv", checkout / ".venv.aside-1"
    names = {"file": [""], "folder": ["notes.txt"], "of an earlier version": [".installed", "lib/os.py"]}
    for file in (theirs / name for name in names.get(kind, ())):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text("mine")
    if kind == "link":
        theirs.symlink_to(tmp_path / "nothing")
    code, said = make(checkout)
    assert code == 0 and is_whole(checkout)
    if kind == "of an earlier version":
        assert "making .venv/ again" in said and not (theirs / ".installed").exists()
    else:
        assert ".venv.aside-1" in said and os.path.lexists(aside)
        assert kind == "link" or (aside if kind == "file" else aside / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["a`touch ran`b", 'a "quoted" $HOME', "back\\slash", "a:b"])
def test_a_path_that_a_shell_would_change_is_refused_before_anything_is_installed(tmp_path, name):
    checkout = checkout_at(tmp_path / name)
    code, said = make(checkout)
    assert code and "move the checkout to another path" in said and str(checkout) in said.replace("\\\\", "\\")
    assert not (checkout / ".venv").exists() and not list(tmp_path.rglob("ran"))


@pytest.mark.long
def test_other_characters_of_a_path_do_no_harm(tmp_path):
    checkout = checkout_at(tmp_path / "it's #1 (50%); a & b")
    assert make(checkout)[0] == 0 and is_whole(checkout)


def as_root(*words):
    return ["unshare", *words] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", *words]


def mounted(folder, options):
    """Return the words before a command for which `folder` is an empty disk with these options."""
    need("unshare")
    tried = subprocess.run([*as_root("-m"), "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("no permission to mount")
    return [*as_root("-m"), "sh", "-c", 'mount -t tmpfs -o "$0" tmpfs "$1" && shift && exec "$@"', options, str(folder)]


def on_a_disk(folder, options):
    """Return the words before a command that is run in a copy of `folder`, in its place, on a disk of these options."""
    aside = folder.with_name("aside")
    shutil.copytree(folder, aside, symlinks=True)
    return [*mounted(folder, options), "sh", "-c", 'cp -a "$0/." "$1" && cd "$1" && shift && exec "$@"', aside, folder]


def test_a_disk_that_executes_no_program_is_refused_before_anything_is_installed(checkout):
    code, said = make(checkout, before=on_a_disk(checkout, "noexec"))
    assert code and "mounted with exec" in said and "installing" not in said


@pytest.mark.long
@pytest.mark.parametrize("size", ["size=2m", "size=8m", "size=15m"])
def test_a_full_disk_is_named(checkout, size):
    code, said = make(checkout, before=on_a_disk(checkout, size))
    assert code and re.search("[Nn]o space left|not enough disk space", said) and "free space" in said


@pytest.mark.long
def test_a_home_that_cannot_be_written_is_no_hindrance(checkout, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    code, said = make(checkout, before=mounted(home, "ro"), HOME=str(home))
    assert code == 0, said
    assert not (checkout / ".venv/cache").exists()


def test_a_user_without_a_home_is_asked_for_one(tmp_path):
    need("setpriv")
    if os.geteuid():
        pytest.skip("only root may become another user")
    # Below a folder that every user may enter: those of the tests are for their owner alone.
    with tempfile.TemporaryDirectory() as open_folder:
        Path(open_folder).chmod(0o755)
        checkout = checkout_at(Path(open_folder) / "checkout")
        # The commands of PATH may lie where another user may not enter.
        env = os.path.realpath(need("env"))
        before = ["setpriv", "--reuid=54321", "--clear-groups", env, "-u", "HOME", f"PATH={os.defpath}"]
        code, said = make(checkout, "PYTHON=/usr/bin/python3", before=before)
    assert code and "HOME is not set" in said and "export HOME=FOLDER" in said


@pytest.mark.long
def test_variables_and_settings_that_mislead_python_and_pip_are_named_and_not_used(checkout, tmp_path):
    (tmp_path / "stub").mkdir()
    for name in ("numpy.py", "yaml.py", "json.py"):
        (tmp_path / "stub" / name).write_text("raise RuntimeError('the stub was imported')\n")
    elsewhere, conf = tmp_path / "elsewhere", tmp_path / "pip.conf"
    conf.write_text(f"[install]\nprefix = {elsewhere}\nroot = {elsewhere}\n")
    places = {"PIP_USER": "1", "PIP_TARGET": str(elsewhere), "PIP_PREFIX": str(elsewhere), "PIP_CONFIG_FILE": str(conf)}
    caches = {"PIP_CACHE_DIR": "/dev/null/cache", "UV_CACHE_DIR": "/dev/null/cache"}
    code, said = make(checkout, PYTHONPATH=str(tmp_path / "stub"), PYTHONHOME="/nothing", **places, **caches)
    assert code == 0 and is_whole(checkout), said
    assert "PYTHONPATH and PYTHONHOME are not used" in said and "PIP_PREFIX, PIP_TARGET, PIP_USER" in said
    assert not elsewhere.exists()


def test_an_installation_that_installed_nothing_is_no_whole_environment(tmp_path):
    """A program that ends well and does nothing takes the place of pip, as one with such settings would."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib/python3.11/site-packages/Some_Package-1.dist-info").mkdir(parents=True)
    (tmp_path / "bin/python").symlink_to(shutil.which("true"))
    lock = tmp_path / "requirements.txt"
    lock.write_text("some-package==1 \\\n    --hash=sha256:12\nother==2\nthird==3 ; sys_platform == 'win32'\n")
    with pytest.raises(InstallError, match=r"pip has ended well, and other of .* are not in"):
        _install(lambda *words: processes.run(words), tmp_path, [str(lock)])


@pytest.mark.long
@pytest.mark.parametrize("most", [4, 8, 16, 60])
def test_too_few_processes_are_named_or_enough(most):
    need("setpriv")
    if os.geteuid():
        pytest.skip("only root may become another user")
    with tempfile.TemporaryDirectory() as open_folder:
        Path(open_folder).chmod(0o777)
        checkout = checkout_at(Path(open_folder) / "checkout")
        subprocess.run(["chown", "-R", "54322", open_folder], check=True)
        limited = ["setpriv", "--reuid=54322", "--clear-groups", "sh", "-c", f'ulimit -u {most}; exec "$@"', "sh"]
        code, said = make(checkout, "PYTHON=/usr/bin/python3", before=limited, HOME=open_folder, PATH=os.defpath)
    assert "Traceback" not in said, said
    assert code == 0 or "ulimit -u" in said or re.search(r"make: .*Resource temporarily unavailable", said), said


@pytest.mark.long
def test_two_at_once_make_one_environment(checkout):
    words = ["make", ".venv/.installed", f"PYTHON={sys.executable}"]
    both = [
        subprocess.Popen(
            words, cwd=checkout, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert "".join(said).count("installing the packages of requirements.txt") == 1
    assert "waiting until it has ended" in "".join(said) and is_whole(checkout)


def test_make_clean_keeps_the_results(checkout):
    for name in (".venv", ".cm", "mlperf-results"):
        (checkout / name).mkdir()
    subprocess.run(["make", "clean"], cwd=checkout, env=environ(), check=True, capture_output=True)
    assert not (checkout / ".venv").exists() and not (checkout / ".cm").exists()
    assert (checkout / "mlperf-results").is_dir()
    subprocess.run(["make", "clean-results"], cwd=checkout, env=environ(), check=True, capture_output=True)
    assert not (checkout / "mlperf-results").exists()


def test_an_old_python_is_refused(checkout):
    old = [shutil.which(f"python3.{minor}") for minor in range(6, 11)]
    old += sorted((Path.home() / ".pyenv/versions").glob("3.[6789].*/bin/python"))
    old = next(
        (path for path in old if path and not subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL)), None
    )
    if old is None:
        pytest.skip("no old Python on PATH")
    code, said = make(checkout, f"PYTHON={old}")
    assert code and "Python 3.11.2 or newer is needed" in said and "Traceback" not in said
