import signal
import subprocess
import time
from pathlib import Path

import pytest

from cm4vllm.engine.run.shell_environment import process_environment, read_assignments
from cm4vllm.engine.run.shell_script import find_native
from commands import need

HARD = {
    "quotes": "a \"b\" 'c'",
    "shell": "$(touch pwned) `touch pwned` $HOME ; & | > x",
    "spaces": "  a  b ",
    "lines": "one\ntwo",
    "backslash": "a\\nb\\",
    "unicode": "größe",
    "empty": "",
    "equals": "a=b",
}


@pytest.mark.parametrize("value", HARD.values(), ids=HARD)
def test_values_arrive_unchanged(home, value):
    home.script("one", run='printf %s "$CM_VALUE" > value\n')
    assert home.run("one", env={"CM_VALUE": value})["return"] == 0
    assert (home.work / "value").read_text() == value
    assert not (home.work / "pwned").exists()


def test_lists_and_plus_keys(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("CFLAGS", raising=False)
    env = process_environment(
        {
            "LIST": ["a", "b"],
            "+PATH": ["/x", "/y"],
            "+ CFLAGS": ["-O2", "-g"],
            "REF": "${LIST}/c",
            "a-b": "no name for a shell",
        }
    )
    assert env["LIST"] == "a:b"
    assert env["PATH"] == "/x:/y:/usr/bin"
    assert env["CFLAGS"] == "-O2 -g"
    assert env["REF"] == "${LIST}/c"
    assert "a-b" not in env


def test_real_exit_status_and_last_lines_are_told(home):
    home.script("one", run="for n in $(seq 30); do echo line $n; done; echo 'last words' >&2; exit 7\n")
    done = home.cli("run", "script", "--tags=one")
    assert done.returncode == 2
    assert "ended with exit status 7" in done.stderr
    assert "last words" in done.stderr
    assert "line 12\n" in done.stderr
    assert "line 11\n" not in done.stderr
    assert "line 1\n" in done.stdout


@pytest.mark.parametrize("command", ["kill -KILL $$", "bash -c 'kill -KILL $$'"])
def test_signal_is_told_by_its_name(home, command):
    home.script("one", run=f"{command}\nexit $?\n")
    assert "killed by SIGKILL" in home.run("one")["error"]


def test_ignore_script_error(home):
    home.script("one", run="exit 7\n")
    assert home.run("one", ignore_script_error=True)["return"] == 0


def test_files_that_explain_an_error_are_shown(home):
    home.script("one", {"print_files_if_script_error": ["why.log"]}, run="echo because > why.log; exit 1\n")
    assert "because" in home.cli("run", "script", "--tags=one").stdout


def test_flavour_of_the_machine_chooses_the_file(tmp_path):
    for name in ("run", "run-ubuntu", "run-ubuntu-x86_64", "run-aarch64"):
        (tmp_path / f"{name}.sh").touch()
    env = {"CM_HOST_OS_FLAVOR": "ubuntu", "CM_HOST_OS_VERSION": "24.04", "CM_HOST_PLATFORM_FLAVOR": "x86_64"}
    folder = str(tmp_path)
    assert find_native(folder, "", env) == f"{folder}/run-ubuntu-x86_64.sh"
    assert find_native(folder, "", {**env, "CM_HOST_PLATFORM_FLAVOR": "other"}) == f"{folder}/run-ubuntu.sh"
    assert find_native(folder, "", {"CM_HOST_PLATFORM_FLAVOR": "aarch64"}) == f"{folder}/run-aarch64.sh"
    assert find_native(folder, "", {}) == f"{folder}/run.sh"


def test_named_script_must_exist(home):
    home.script("one", {"script_name": "other"})
    assert home.run("one")["return"] == 3


def test_script_prefix_comes_before_the_script(home):
    home.script("one", {"state": {"script_prefix": ["CM_FROM_PREFIX=yes"]}}, run='echo "$CM_FROM_PREFIX" > seen')
    assert home.run("one")["return"] == 0
    assert (home.work / "seen").read_text() == "yes\n"


def test_a_background_process_does_not_hold_the_run(home):
    home.script("one", run="sleep 60 & echo $! > pid\n")
    begin = time.monotonic()
    assert home.run("one")["return"] == 0
    assert time.monotonic() - begin < 30
    subprocess.run(["kill", (home.work / "pid").read_text().strip()], check=True)


def lives(pid):
    """Return True if a process runs; a zombie, which a container's first process may leave, has ended."""
    try:
        return Path("/proc", str(pid), "stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_what_the_script_started_ends_with_the_run(home, signum, code):
    home.script("one", run="sleep 60 & echo $! > pid.tmp; mv pid.tmp pid; wait\n")
    process = home.start("run", "script", "--tags=one")
    while not (home.work / "pid").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == code
    assert "Traceback" not in errors
    # Its end was asked for, and comes when the kernel has a processor for it.
    give_up = time.monotonic() + 30
    while lives(int((home.work / "pid").read_text())):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_assignments(tmp_path):
    (tmp_path / "f").write_text("A=1\nB = two words \n\nnot an assignment\nC=x=y\n=z\n")
    assert read_assignments(tmp_path / "f") == {"A": "1", "B": "two words", "C": "x=y"}
    assert read_assignments(tmp_path / "missing") == {}


#: Interpreters whose locale has no letters but those of English: in the second, Python itself switches to UTF-8.
PLAIN_LOCALES = [
    {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"LC_ALL": "C"},
    {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "gbk"},
    {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"},
]


@pytest.mark.parametrize("locale", PLAIN_LOCALES, ids=lambda locale: "-".join(locale.values()))
def test_what_a_script_prints_is_passed_on_in_any_locale(home, locale):
    home.script("one", run="for n in 1 2 3; do printf 'größe 漢字 \\xff 🜚 %s\\n' $n; done\necho last; exit 7\n")
    done = home.cli("run", "script", "--tags=one", **locale)
    assert "ended with exit status 7" in done.stderr
    assert "last\n" in done.stdout
    assert "Traceback" not in done.stderr
    log = next((home.path / "logs").glob("*.log"))
    assert "größe 漢字" in log.read_text(encoding="utf-8")


def test_what_a_script_prints_is_passed_on_in_a_chinese_locale(home, tmp_path):
    made = subprocess.run(
        [need("localedef"), "-i", "zh_CN", "-f", "GBK", tmp_path / "zh_CN.GBK"], capture_output=True, check=False
    )
    if not (tmp_path / "zh_CN.GBK").is_dir():
        pytest.skip(f"the locale zh_CN.GBK cannot be made here: {made}")
    home.script("one", run="printf 'größe 漢字 🜚\n'; exit 7\n")
    done = home.cli("run", "script", "--tags=one", LC_ALL="zh_CN.GBK", LOCPATH=str(tmp_path), PYTHONUTF8="0")
    assert "ended with exit status 7" in done.stderr
    assert "größe 漢字 🜚" in next((home.path / "logs").glob("*.log")).read_text(encoding="utf-8")


def test_a_log_that_cannot_be_written_does_not_end_the_script(home):
    (home.path / "logs").write_text("a file, where the folder of the logs would be")
    home.script("one", run="for n in $(seq 20000); do echo line $n; done\ntouch done\n")
    done = home.cli("run", "script", "--tags=one")
    assert done.returncode == 0, done.stderr
    assert (home.work / "done").exists()
    assert "line 20000\n" in done.stdout


def test_a_reader_that_goes_away_does_not_end_the_script(home):
    home.script("one", run="for n in $(seq 20000); do echo line $n; done\ntouch done\n")
    process = home.start("run", "script", "--tags=one")
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(timeout=60)
    assert (home.work / "done").exists(), errors
    assert "Traceback" not in errors
    assert "SIGPIPE" not in errors
