"""Completion in real shells: what TAB offers after `cm run script`."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cm4vllm.engine.tools.completion import candidates, shell_code
from commands import need

ROOT = Path(__file__).resolve().parents[3]
TAGS = "cm run script --tags="
CASES = [
    ("cm pl", ["plan"]),
    ("cm run scr", ["script"]),
    ("cm run script --ta", ["--tags="]),
    (f"{TAGS}run-mlperf-", ["--tags=run-mlperf-endpoints", "--tags=run-mlperf-inference"]),
    (f"{TAGS}advise,vll", ["--tags=advise,vllm-fit"]),
    (f"{TAGS}run-mlperf,inference,_dum", ["--tags=run-mlperf,inference,_dummy", "--tags=run-mlperf,inference,_dummy."]),
    (f"{TAGS}run-mlperf,inference,_vllm --offl", ["--offline_target_qps="]),
    (f"{TAGS}run-mlperf,inference,_vllm --division=", ["--division=closed", "--division=network", "--division=open"]),
    (f"{TAGS}run-mlperf,inference,_vllm --model=gpt", ["--model=gpt-oss-120b"]),
    (f"{TAGS}run-mlperf,inference,_vllm,_r5.1 --model=gpt", []),  # the round has no such benchmark
    (
        f"{TAGS}run-mlperf,inference,_vllm --model=llama3.1-8b-edge --scenario=",
        ["--scenario=Offline", "--scenario=SingleStream"],
    ),
    # of several values, separated by commas, the last is completed, and none is offered twice
    (f"{TAGS}run-mlperf,inference,_vllm --scenario=Offline,Ser", ["--scenario=Offline,Server"]),
    (
        f"{TAGS}run-mlperf,inference,_vllm --model=llama3.1-8b-edge --scenario=Offline,",
        ["--scenario=Offline,SingleStream"],
    ),
    (f"{TAGS}find,server-settings --scenario=Server,Interactive,O", ["--scenario=Server,Interactive,Offline"]),
    (f"{TAGS}run-mlperf,inference,_vllm --division=open,cl", []),  # one value alone
    (
        f"{TAGS}run-mlperf,inference,_vllm --published=v4.1-neuralmagic-llama2-70b-fp8-4x",
        ["--published=v4.1-neuralmagic-llama2-70b-fp8-4xh100"],
    ),
    (f"{TAGS}run-mlperf,inference,_vllm --no_such=1 --model=gpt", ["--model=gpt-oss-120b"]),
    (f"{TAGS}run-mlperf,inference,_vllm --pla", ["--plan"]),
    (f"{TAGS}no-such-tag,", []),
    ("ls run script --tags", ["--tags="]),  # the shell calls it for `cm` alone
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A CM home with an index of this repository's recipes, as cmind writes it."""
    folder = tmp_path_factory.mktemp("home")
    subprocess.run(
        [sys.executable, "-m", "cm4vllm.engine.tools.register", str(ROOT)],
        env={**os.environ, "CM_REPOS": str(folder)},
        check=True,
        capture_output=True,
    )
    return folder


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_a_line_is_completed(home, line, expected):
    assert [candidate.rstrip() for candidate in candidates(line, str(home))] == expected


def test_all_tags_and_variations_are_offered(home):
    offered = candidates(f"{TAGS}run-mlperf,inference,", str(home))
    assert f"{TAGS[14:]}run-mlperf,inference,_vllm" in offered
    assert f"{TAGS[14:]}run-mlperf,inference,_r5.1" in offered
    assert f"{TAGS[14:]}run-mlperf,inference,mlcommons" in offered


@pytest.mark.parametrize("broken", [None, b"{", b"[]", json.dumps({"5b4e0237da074764": {"a": {}}}).encode()])
def test_a_home_without_a_usable_index_offers_no_tags(tmp_path, broken):
    if broken is not None:
        (tmp_path / "index.json").write_bytes(broken)
    assert candidates(f"{TAGS}run", str(tmp_path)) == []


BASH = """\
source code.bash
COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}; COMP_CWORD=0; COMP_WORDS=()
complete -p cm
_cm4vllm_complete
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_completes_what_follows_the_last_word_break(home, tmp_path):
    (tmp_path / "code.bash").write_text(shell_code("bash"))

    def reply(line: str) -> list[str]:
        environment = {**os.environ, "CM_REPOS": str(home)}
        done = subprocess.run(
            ["bash", "--norc", "-c", BASH, "bash", line], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.stderr == ""
        first, *words = done.stdout.splitlines()
        assert first == "complete -o bashdefault -o default -o nospace -F _cm4vllm_complete cm"
        return words

    assert reply(f"{TAGS}advise,vll") == ["advise,vllm-fit"]
    assert reply(f"{TAGS}run-mlperf,inference --execution_mode=v") == ["valid "]
    assert reply(f"{TAGS}run-mlperf,inference --model=llama3.1-8b-e") == ["llama3.1-8b-edge "]
    assert reply(f"{TAGS}run-mlperf,inference --scenario=Offline,Ser") == ["Offline,Server"]
    assert reply(f"{TAGS}run-mlperf,inference --offl") == ["--offline_target_qps="]
    assert reply("cm run script --tags=no-such,") == [""]


def in_a_terminal(words: list[str], typed: str, cwd: Path, environment: dict[str, str]) -> str:
    """Type into an interactive shell and return its screen's text."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(words[0], words, environment)
    shown = b""
    try:
        for part, sign in ((f"source code.{words[0]}; echo re''ady\n", b"ready\r\n"), (typed, b"<done>")):
            os.write(terminal, part.encode())
            end = time.monotonic() + 60
            while sign not in shown and select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
                shown += os.read(terminal, 4096)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown.decode(errors="replace")


@pytest.mark.parametrize("shell", [["bash", "--norc", "-i"], ["zsh", "-f", "-i"]], ids=["bash", "zsh"])
def test_tab_completes_in_an_interactive_shell(home, tmp_path, shell):
    need(shell[0])
    (tmp_path / f"code.{shell[0]}").write_text(shell_code(shell[0]))
    environment = {**os.environ, "CM_REPOS": str(home), "HOME": str(tmp_path), "TERM": "dumb", "PS1": "$ "}
    # `cm` is a function here: it shows the words that reached it once the line is entered.
    typed = "cm() { echo \"<$*>\"; echo '<do''ne>'; }; :\n"
    typed += f"{TAGS}find,server-sett\t --search_m\t5 --scenario=Offline,Ser\t\n"
    shown = in_a_terminal(shell, typed, tmp_path, environment)
    assert "<run script --tags=find,server-settings --search_minutes=5 --scenario=Offline,Server>" in shown


@pytest.mark.timing
def test_completion_takes_less_than_150_ms(home):
    line = f"{TAGS}run-mlperf,inference,_"
    environment = {**os.environ, "CM_REPOS": str(home), "COMP_LINE": line, "COMP_POINT": str(len(line))}
    words = [sys.executable, "-m", "cm4vllm.engine.tools.completion", "zsh"]
    used = []
    for _ in range(4):
        before = os.times()
        subprocess.run(words, env=environment, check=True, capture_output=True)
        after = os.times()
        used.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(used) < 0.15, "processor seconds of a completion; its wall time beside other tests is not judged"
