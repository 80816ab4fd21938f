from __future__ import annotations

import dataclasses
import os
import re
import socket
from pathlib import Path

import psutil
import pytest

from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.files import write_text
from cm4vllm.rules import Scenario
from cm4vllm.submission.privacy import first_private, private_words, refuse_private, scrubbed
from cm4vllm.submission.system import SystemSettings, write_system
from cm4vllm.submission.tree import build_tree

ENV = {"HOME": "/home/jdoe42", "USER": "jdoe42"}


@pytest.fixture
def root(tmp_path):
    """A machine with a name and serial numbers."""
    for name, text in {
        "proc/sys/kernel/hostname": "vllm.us-east1-a.compute.internal\n", "etc/hostname": "gpuhost-0815x\n",
        "sys/class/dmi/id/product_serial": "S4M7RX2C04L\n", "sys/class/dmi/id/board_serial": "To be filled by O.E.M.\n",
        "sys/block/nvme0n1/device/serial": "S64GNG0R912345  \n", "etc/machine-id": "3d1219c7c4c5404aaa1f6d2a48adfda0\n",
    }.items():
        path = tmp_path / "machine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "machine"


@pytest.mark.parametrize(("line", "clean"), [
    ("--model /home/jdoe42/models/x", "--model ~/models/x"),
    ("HF_HOME=/home/jdoe42", "HF_HOME=~"),
    ("cache:/home/jdoe42/.cache", "cache:~/.cache"),
    ("/data/jdoe42/runs", "/data/[user]/runs"),
    ("run by JDoe42.", "run by [user]."), ("1xH100_jdoe42_x", "1xH100_[user]_x"),
    ("on vllm.us-east1-a.compute.internal:8000", "on [host]:8000"),
    ("gpuhost-0815x: ready", "[host]: ready"),
    ("serial S4M7RX2C04L", "serial [serial]"),
    ("disk S64GNG0R912345", "disk [serial]"),
    ("GPU-4039dfe4-0c97-4b1e-683e-eb7d42699053 is used", "[serial] is used"),
    ("--api_server=http://gpu07.lab.example:8000/v1", "--api_server=http://[server]:8000/v1"),
    ("http://203.0.113.9:8000", "http://[server]:8000"),
])  # fmt: skip
def test_what_is_private_is_found_and_scrubbed(root, line, clean):
    words = private_words(root, ENV, servers=["gpu07.lab.example", "203.0.113.9", "127.0.0.1", "localhost"],
                          serials=["GPU-4039dfe4-0c97-4b1e-683e-eb7d42699053"])
    assert first_private(line, words) is not None
    assert scrubbed(line, words) == clean
    assert first_private(clean, words) is None


@pytest.mark.parametrize("line", [
    "served by vLLM 0.32.0", "/home/jdoe421/x", "To be filled by O.E.M.", "the machine at 127.0.0.1:8000", "localhost",
    "nvidia-cublas 12.8.4.1", "1203.0.113.99", "jdoe", "",
])  # fmt: skip
def test_what_is_not_private_stays(root, line):
    words = private_words(root, ENV, servers=["203.0.113.9", "127.0.0.1", "localhost"])
    assert first_private(line, words) is None
    assert scrubbed(line, words) == line


def test_a_name_that_is_a_common_word_is_private_only_as_a_name(root):
    words = private_words(root, {"HOME": "/srv/people/max", "USER": "max"})
    assert first_private("max_tokens is the max of both, for max 3 samples", words) is None
    assert scrubbed("/home/max/models and max@node", words) == "/home/[user]/models and [user]@node"
    assert scrubbed("/srv/people/max/models", words) == "~/models"


def test_root_is_nobodys_name(root):
    words = private_words(root, {"HOME": "/root", "USER": "root"})
    assert first_private("root reads /root/x in /home/root", words) is None
    assert scrubbed("--out=/root/x of root", words) == "--out=~/x of root"


def test_this_machines_own_addresses_are_known():
    words = {one.word for one in private_words()}
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                assert address.address in words


def test_a_file_and_a_name_of_a_file_are_refused_with_their_place(root, tmp_path):
    words = private_words(root, ENV)
    tree = tmp_path / "tree"
    (tree / "logs").mkdir(parents=True)
    (tree / "logs/detail.txt").write_text("fine\nread /home/jdoe42/data\n")
    with pytest.raises(SubmissionError, match=r"logs/detail.txt, line 2, names this machine's home folder"):
        refuse_private(tree, words)
    (tree / "logs/detail.txt").write_bytes(b"\xff\x00 binary")
    refuse_private(tree, words)
    (tree / "logs/of_S4M7RX2C04L.txt").write_text("")
    with pytest.raises(SubmissionError, match="the name of logs/of_S4M7RX2C04L.txt names this machine's serial"):
        refuse_private(tree, words)


def test_a_whole_tree_holds_nothing_of_this_machine(campaign, rewrite, monkeypatch):
    monkeypatch.setenv("USER", "jdoe42")
    asked = campaign()
    address = next((one.address for all_of in psutil.net_if_addrs().values() for one in all_of
                    if one.family == socket.AF_INET and not one.address.startswith("127.")), "")
    write_text(asked.out / "system/machine.json", '{"gpus": [{"uuid": "GPU-4039dfe4-0c97", "x": 1}]}')
    for run in (asked.out / "runs").glob("*/*/*/*/run.json"):
        rewrite(run, lambda record: record["settings"]["model"].update(source="the folder /mnt/jdoe42/llama"))
    ours = f"GPU-4039dfe4-0c97 run by jdoe42 in {Path.home()}/x on {socket.gethostname()}, {address or 'nowhere'}"
    asked = dataclasses.replace(asked, command=f"cm run script --output_dir={ours}",
                                readmes=dict.fromkeys((Scenario.OFFLINE, Scenario.SERVER), f"# measured\n{ours}\n"),
                                extra_files=dict.fromkeys(asked.extra_files, f"<p>{ours}</p>"))
    tree = build_tree(asked)
    refuse_private(tree, private_words())
    private = ["jdoe42", "GPU-4039dfe4-0c97", address, str(Path.home()) + "/x", str(asked.out)]
    for path in tree.rglob("*"):
        if path.is_file() and "src/cm4vllm" not in path.as_posix():
            for word in filter(None, private):
                assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", path.read_text()), (word, path)
    assert "run by [user] in " in next(tree.glob("open/*/results/*/*/Offline/README.md")).read_text()


@pytest.mark.parametrize("where", ["user.conf", "accuracy.txt", "system.json"])
def test_evidence_is_refused_rather_than_changed(campaign, rewrite, monkeypatch, where):
    monkeypatch.setenv("USER", "jdoe42")
    asked = campaign()
    if where == "system.json":
        rewrite(asked.out / "system/system.json", lambda system: system.update(hw_notes="the box of jdoe42"))
    elif where == "user.conf":
        for run in (asked.out / "runs").glob("*/*/*/*/run.json"):
            rewrite(run, lambda record: record["settings"].update(user_conf="# of jdoe42\n"))
    else:
        scores = next((asked.out / "runs").glob("*/*/Offline/accuracy/accuracy.txt"))
        scores.write_text(scores.read_text() + "scored by jdoe42\n")
    with pytest.raises(SubmissionError, match="names this machine's user") as refused:
        build_tree(asked)
    assert "jdoe42" in refused.value.cause
    assert not (asked.out / "submission").exists()


def test_a_statement_that_names_the_user_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "jdoe42")
    (tmp_path / "system.yaml").write_text("hw_notes: under the desk of jdoe42\n")
    with pytest.raises(UsageError, match="hw_notes names this machine's user"):
        write_system(SystemSettings(folder=str(tmp_path), system_file=str(tmp_path / "system.yaml")))
    with pytest.raises(UsageError, match="system_name names this machine's user"):
        write_system(SystemSettings(folder=str(tmp_path), name="box-of-jdoe42"))


def test_machine_facts_hold_no_name_and_no_address(tmp_path):
    write_system(SystemSettings(folder=str(tmp_path)))
    for path in tmp_path.iterdir():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert first_private(line, private_words()) is None, (path, number)
    assert os.uname().nodename  # the machine has a name to be looked for
