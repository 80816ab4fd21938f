import dataclasses
import os
import re
import socket
from pathlib import Path

import msgspec
import psutil
import pytest

from cm4vllm.common.checking import private_words as privacy
from cm4vllm.common.checking.private_words import first_private, private_words, scrub
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.programs.own_program import program_files
from cm4vllm.common.records import write_record
from cm4vllm.common.secrets.secret_forms import without_keys
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.rules import Scenario
from cm4vllm.submission.privacy_check import inspect_tree, refuse_private
from cm4vllm.submission.system_records import SystemSettings, write_system
from cm4vllm.submission.tree import build_tree
from gpu_machines import gpus

pytestmark = pytest.mark.xdist_group("runs-submission")  # one process makes the runs of these files

ENV = {"HOME": "/home/jdoe42", "USER": "jdoe42", "HF_TOKEN": "s3cr3t-w0rd", "DB_PASSWORD": "benchmark"}
#: A user and a device that no file of the repository names, this one included: a file that is not as its commit has it
#: is searched for them.
PERSON, GPU = "jdoe" + "4711x", "GPU-" + "77e1a2b3-0d9c"


@pytest.fixture
def root(tmp_path):
    """A machine with a name and serial numbers."""
    for name, text in {
        "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 node07b.lab.example node07b  # us\n10.9.8.7 other\n",
        "proc/sys/kernel/hostname": "vllm.us-east1-a.compute.internal\n",
        "etc/hostname": "gpuhost-0815x\n",
        "sys/class/dmi/id/product_serial": "S4M7RX2C04L\n",
        "sys/class/dmi/id/board_serial": "To be filled by O.E.M.\n",
        "sys/block/nvme0n1/device/serial": "S64GNG0R912345  \n",
        "etc/machine-id": "3d1219c7c4c5404aaa1f6d2a48adfda0\n",
    }.items():
        path = tmp_path / "machine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "machine"


@pytest.mark.parametrize(
    ("line", "clean"),
    [
        ("--model /home/jdoe42/models/x", "--model ~/models/x"),
        ("HF_HOME=/home/jdoe42", "HF_HOME=~"),
        ("cache:/home/jdoe42/.cache", "cache:~/.cache"),
        ("/data/jdoe42/runs", "/data/[user]/runs"),
        ("run by JDoe42.", "run by [user]."),
        ("1xH100_jdoe42_x", "1xH100_[user]_x"),
        ("on vllm.us-east1-a.compute.internal:8000", "on [host]:8000"),
        ("gpuhost-0815x: ready", "[host]: ready"),
        ("serial S4M7RX2C04L", "serial [serial]"),
        ("disk S64GNG0R912345", "disk [serial]"),
        ("GPU-4039dfe4-0c97-4b1e-683e-eb7d42699053 is used", "[serial] is used"),
        ("--api_server=http://gpu07.lab.example:8000/v1", "--api_server=http://[server]:8000/v1"),
        ("connect to gpu07 failed", "connect to [server] failed"),
        ("GPU07.other.example is up.", "[server] is up."),
        ("gpuhost-0815x.lab.example: ready", "[host]: ready"),
        ("uname: Linux vllm 6.1.0-9-amd64", "uname: Linux [host] 6.1.0-9-amd64"),
        ("ssh jdoe42@vllm", "ssh [user]@[host]"),
        ("http://vllm:8000/v1", "http://[host]:8000/v1"),
        ("listening on vllm:8000", "listening on [host]:8000"),
        ("ip-203-0-113-9 and ::ffff:203.0.113.9", "ip-[server] and [server]"),
        ("9.113.0.203.in-addr.arpa", "[server]"),
        ("::FFFF:CB00:7109 answers", "[server] answers"),
        ("node07b on 10.9.8.7", "[host] on 10.9.8.7"),
        ("node07b.lab.example", "[host]"),
        ("wrote /data/jdoe42/x/results/a.log", "wrote [folder]/a.log"),
        ("token s3cr3t-w0rd used", "token (secret) used"),
        ("S3CR3T-W0RD", "(secret)"),
        ("http://203.0.113.9:8000", "http://[server]:8000"),
    ],
)
def test_what_is_private_is_found_and_scrubbed(root, line, clean):
    words = private_words(
        root,
        ENV,
        servers=["gpu07.lab.example", "203.0.113.9", "127.0.0.1", "localhost"],
        serials=["GPU-4039dfe4-0c97-4b1e-683e-eb7d42699053"],
        folders=["/data/jdoe42/x/results"],
    )
    assert first_private(line, words) is not None
    assert scrub(line, words) == clean
    assert first_private(clean, words) is None


PLAIN = (
    "served by vLLM 0.32.0|/home/jdoe421/x|To be filled by O.E.M.|the machine at 127.0.0.1:8000|localhost|jdoe||other|"
    "nvidia-cublas 12.8.4.1|1203.0.113.99|vLLM: 8000 tokens|a benchmark of vllm|vllm.entrypoints|pip install vllm|"
    "https://docs.vllm.ai/en/latest|/data/x"
)


@pytest.mark.parametrize("line", PLAIN.split("|"))
def test_what_is_not_private_stays(root, line):
    words = private_words(root, ENV, servers=["203.0.113.9", "127.0.0.1", "localhost"], folders=["/data"])
    assert first_private(line, words) is None
    assert scrub(line, words) == line


def test_a_name_that_is_a_common_word_is_private_only_as_a_name_and_root_never(root):
    words = private_words(root, {"HOME": "/srv/people/max", "USER": "max"})
    assert first_private("max_tokens is the max of both, for max 3 samples", words) is None
    assert scrub("/home/max/models and max@node", words) == "/home/[user]/models and [user]@node"
    assert scrub("/srv/people/max/models", words) == "~/models"


def test_a_user_of_an_archive_without_git_may_have_a_name_that_the_program_uses(root, monkeypatch):
    files, user = [dataclasses.replace(file, published=False) for file in program_files()], "nobody"
    monkeypatch.setattr(privacy, "program_files", lambda: files)
    privacy._vocabulary.cache_clear()
    try:
        words = [word for word in private_words(root, {"HOME": "/srv/people/x", "USER": user}) if word.kind == "user"]
        for file in files:
            assert first_private(file.path.read_text(encoding="utf-8", errors="replace"), words) is None, file.name
        assert scrub(f"{user}@node", words) == "[user]@node"
    finally:
        monkeypatch.undo()
        privacy._vocabulary.cache_clear()

    words = private_words(root, {"HOME": "/root", "USER": "root"})
    assert first_private("root reads /root/x in /home/root", words) is None
    assert scrub("--out=/root/x of root", words) == "--out=~/x of root"


def own_addresses():
    addresses = [address for all_of in psutil.net_if_addrs().values() for address in all_of]
    of_ip4 = {address.address for address in addresses if address.family == socket.AF_INET}
    return {address for address in of_ip4 if not address.startswith("127.")}


def test_this_machines_own_addresses_are_known():
    before = own_addresses()
    words = {word.word for word in private_words()}
    assert before & own_addresses() <= words  # those of networks that other tests make and remove come and go


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


def test_a_secret_in_a_tree_is_refused_without_being_shown(root, tmp_path):
    words = private_words(root, ENV)
    tree = tmp_path / "tree"
    tree.mkdir()
    for content, cause in (
        ("x s3cr3t-w0rd x\n", "the value of HF_TOKEN"),
        ("key hf_" + "aB3" * 11 + "\n", "text in the form of a key"),
    ):
        (tree / "console.txt").write_text(content)
        with pytest.raises(SubmissionError, match=r"console.txt, line 1, contains a secret") as refused:
            refuse_private(tree, words)
        assert refused.value.cause.startswith(cause)
        assert not any(word in str(refused.value) for word in ("s3cr3t", "aB3"))


def test_what_others_have_already_may_name_a_machine_that_is_called_the_same(root, tmp_path):
    words, tree = private_words(root, ENV), tmp_path / "tree"
    example = tree / "src" / "example.md"
    example.parent.mkdir(parents=True)
    example.write_text("for example on gpuhost-0815x\n")
    for programs in ({}, {"src/": frozenset()}, {"other/": frozenset([sha256_of(example)])}):
        with pytest.raises(SubmissionError, match="names this machine's host"):
            refuse_private(tree, words, programs)
    refuse_private(tree, words, {"src/": frozenset([sha256_of(example)])})
    example.write_text("s3cr3t-w0rd\n")
    with pytest.raises(SubmissionError, match="contains a secret"):
        refuse_private(tree, words, {"src/": frozenset([sha256_of(example)])})


def test_the_login_of_the_model_hub_is_a_secret(root, tmp_path):
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text("hub-login-of-jdoe\n")
    words = private_words(root, {"HOME": str(tmp_path)})
    assert first_private("used hub-login-of-jdoe", words).kind == "secret"


def test_no_file_of_the_program_is_refused_where_it_was_changed():
    """A file that differs from its commit is read as any other: an edit of it must not lead to a refusal."""
    words = private_words()
    for file in program_files():
        content = file.path.read_text(errors="replace")
        assert without_keys(content) == content, file.name
        assert first_private(content, words) is None, file.name


def test_a_whole_tree_holds_nothing_of_this_machine(campaign, rewrite, monkeypatch):
    monkeypatch.setenv("USER", PERSON)
    asked = campaign()
    address = next(iter(own_addresses()), "")
    machine = msgspec.structs.replace(detect_machine(), gpus=gpus(1, uuid=GPU))
    write_record(asked.out / "system/machine.json", machine)
    for run in (asked.out / "runs").glob("*/*/*/*/run.json"):
        rewrite(run, lambda record: record["settings"]["model"].update(source=f"the folder /mnt/{PERSON}/llama"))
    ours = f"{GPU} run by {PERSON} in {Path.home()}/x on {socket.gethostname()}, {address or 'nowhere'}"
    asked = dataclasses.replace(
        asked,
        command=f"cm run script --output_dir={ours}",
        readmes=dict.fromkeys((Scenario.OFFLINE, Scenario.SERVER), f"# measured\n{ours}\n"),
        page=f"<p>{ours}</p>",
    )
    tree = build_tree(asked)
    inspect_tree(tree)
    private = [PERSON, GPU, address, str(Path.home()) + "/x", str(asked.out)]
    for path in tree.rglob("*"):
        if path.is_file() and "src/cm4vllm" not in path.as_posix():
            for word in filter(None, private):
                assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", path.read_text()), (word, path)
    assert "run by [user] in " in next(tree.glob("open/*/results/*/*/Offline/README.md")).read_text()


@pytest.mark.parametrize("where", ["user.conf", "accuracy.txt", "system.json"])
def test_evidence_is_refused_rather_than_changed(campaign, rewrite, monkeypatch, where):
    monkeypatch.setenv("USER", PERSON)
    asked = campaign()
    if where == "system.json":
        rewrite(asked.out / "system/system.json", lambda system: system.update(hw_notes=f"the box of {PERSON}"))
    elif where == "user.conf":
        for run in (asked.out / "runs").glob("*/*/*/*/run.json"):
            rewrite(run, lambda record: record["settings"].update(user_conf=f"# of {PERSON}\n"))
    else:
        scores = next((asked.out / "runs").glob("*/*/Offline/accuracy/accuracy.txt"))
        scores.write_text(scores.read_text() + f"scored by {PERSON}\n")
    with pytest.raises(SubmissionError, match="names this machine's user") as refused:
        build_tree(asked)
    assert PERSON in refused.value.cause
    assert not (asked.out / "submission").exists()


def test_a_statement_that_names_the_user_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", PERSON)
    (tmp_path / "system.yaml").write_text(f"hw_notes: under the desk of {PERSON}\n")
    with pytest.raises(UsageError, match="hw_notes names this machine's user"):
        write_system(SystemSettings(folder=str(tmp_path), system_file=str(tmp_path / "system.yaml")))
    with pytest.raises(UsageError, match="system_name names this machine's user"):
        write_system(SystemSettings(folder=str(tmp_path), name=f"box-of-{PERSON}"))


def test_machine_facts_hold_no_name_and_no_address(tmp_path):
    write_system(SystemSettings(folder=str(tmp_path)))
    for path in tmp_path.iterdir():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert first_private(line, private_words()) is None, (path, number)
    assert os.uname().nodename  # the machine has a name to be looked for
