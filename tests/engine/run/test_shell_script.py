import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.engine.waiting import wait_for

from cm4vllm.engine.run.shell_environment import expand, process_environment, read_assignments
from cm4vllm.engine.run.shell_script import Guardian, find_native
from commands import need


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


@pytest.mark.parametrize("command", ["kill -KILL $$", "bash -c 'kill -KILL $$'"])
def test_signal_is_told_by_its_name(home, command):
    home.script("one", run=f"{command}\nexit $?\n")
    assert "killed by SIGKILL" in home.run("one")["error"]


def test_files_that_explain_an_error_are_shown(home):
    home.script("one", {"print_files_if_script_error": ["why.log"]}, run="echo because > why.log; exit 1\n")
    assert "because" in home.done("run", "script", "--tags=one").stdout


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


def wait_until(holds, condition):
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, condition
        time.sleep(0.02)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # gone before it was opened, or before it was read
        return False


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_what_the_script_started_ends_with_the_run(home, signum, code):
    home.script("one", run="sleep 60 & echo $! > pid.tmp; mv pid.tmp pid; wait\n")
    process = home.start("run", "script", "--tags=one")
    wait_for(home.work / "pid")
    process.send_signal(signum)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == code
    assert "Traceback" not in errors
    # Its end was asked for, and comes when the kernel has a processor for it.
    wait_until(lambda: not alive(int((home.work / "pid").read_text())), "what run.sh started lives on")


def test_assignments(tmp_path):
    (tmp_path / "f").write_text("A=1\nB = two words \n\nnot an assignment\nC=x=y\n=z\n")
    assert read_assignments(tmp_path / "f") == {"A": "1", "B": "two words", "C": "x=y"}
    assert read_assignments(tmp_path / "missing") == {}


#: Interpreters whose locale has no letters but those of English, or others.
PLAIN_LOCALES = [
    {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "gbk"},
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
    done = home.done("run", "script", "--tags=one")
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


# --- shell_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$HOME/.ssh/id", "/home/me/.ssh/id"),
        ("${HOME}x", "/home/mex"),
        (r"\$HOME", "$HOME"),
        (r"\"a\" \\ \`b\`", '"a" \\ `b`'),
        ("$(id) `id`", "$(id) `id`"),
        ("$UNSET.", "."),
        ("5$ and $", "5$ and $"),
        (r"\n \&", r"\n \&"),
        ("${HOME:-x}", "${HOME:-x}"),
    ],
)
def test_expansion_is_that_of_double_quotes_without_commands(text, value):
    assert expand(text, {"HOME": "/home/me"}) == value


RUN = 'printf "%s|%s" "$CM_REF" "$CM_GIVEN" > seen\n'


def test_references_of_the_meta_are_replaced_and_given_values_are_not(home):
    home.script(
        "one",
        {"default_env": {"CM_REF": "$HOME/${CM_PART}"}},
        run=RUN,
        customize="def preprocess(i): i['env']['CM_PART'] = 'p'; return {'return': 0}\n",
    )
    assert home.run("one", env={"CM_GIVEN": "$HOME ${CM_PART}"})["return"] == 0
    assert (home.work / "seen").read_text() == f"{home.env['HOME']}/p|$HOME ${{CM_PART}}"


def test_a_given_value_in_place_of_the_metas_is_exact(home):
    home.script("one", {"default_env": {"CM_REF": "$HOME"}}, run=RUN)
    home.run("one", env={"CM_REF": "$HOME "})
    assert (home.work / "seen").read_text() == "$HOME |"


def test_a_meta_can_ask_for_keys_that_hooks_compose(home):
    hook = "def preprocess(i): i['env']['CM_REF'] = r'\\$(cat $HOME/x)'; return {'return': 0}\n"
    home.script("one", {"shell_env_keys": ["CM_R*"]}, run=RUN, customize=hook)
    home.run("one")
    assert (home.work / "seen").read_text() == f"$(cat {home.env['HOME']}/x)|"
    home.script("two", run=RUN, customize=hook)
    home.run("two")
    assert (home.work / "seen").read_text() == "\\$(cat $HOME/x)|"


# --- the guardian: processes that run.sh started end with an engine that was killed


@pytest.mark.parametrize(
    "started", ["sleep 600 & echo $! > sleeper; wait", "sh -c 'echo $$ > sleeper; exec sleep 600'"]
)
def test_a_killed_engine_leaves_nothing_of_its_run_sh(home, started):
    home.script("one", run=started)
    process = home.start("run", "script", "--tags=one")
    sleeper = home.work / "sleeper"
    wait_until(lambda: sleeper.exists() and sleeper.read_text().endswith("\n"), "run.sh did not start")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not alive(int(sleeper.read_text())), "what run.sh started lives on")


def test_a_stop_within_the_start_of_run_sh_ends_it(home, monkeypatch):
    started = []

    class Stopped(subprocess.Popen):
        def __init__(self, *words, **given):
            super().__init__(*words, **given)
            if "pass_fds" in given:  # not the guardian itself
                started.append(self)
                raise KeyboardInterrupt

    home.script("one", run="echo $$ > sleeper; exec sleep 600")
    monkeypatch.setattr(subprocess, "Popen", Stopped)
    assert home.run("one")["return"] == 130
    try:
        started[0].communicate(timeout=20)
    finally:
        started[0].kill()


def test_what_an_ended_run_sh_left_running_is_not_touched(home):
    home.script("one", run="sleep 600 > /dev/null 2>&1 & echo $! > sleeper")
    assert home.done("run", "script", "--tags=one").returncode == 0
    sleeper = int((home.work / "sleeper").read_text())
    time.sleep(0.1)
    try:
        assert alive(sleeper)
    finally:
        os.kill(sleeper, signal.SIGKILL)


def test_a_guardian_that_was_killed_harms_no_run():
    """Calls of a guardian without a process raise nothing."""
    guardian = Guardian()
    guardian.start()
    guardian._process.kill()
    guardian._process.wait()
    guardian.ended(os.getpid())
    guardian.close()
