"""Private text in a tree: its places in pages and programs, its hidden parts, and the files that are not read."""

import os
import random
import string

import pytest

from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.checking.private_text import DOCUMENT_FORMS, found_in
from cm4vllm.common.secrets.secret_forms import keys_in
from cm4vllm.results.checks import CHECKS
from cm4vllm.results.checks.of_texts.private_text import LARGEST_TEXT
from cm4vllm.results.model import Submission
from cm4vllm.results.submitted_names import is_a_person

#: Not whole in this file: the program that is published with a submission is searched for it.
KEY = " ".join(["PRIVATE", "KEY"])


def made_up(length):
    """Return letters and digits that no file of the project holds."""
    return "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=length))


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "closed" / "Somebody"
    (home / "src" / "llama").mkdir(parents=True)
    return home


def findings_of(home):
    submission = Submission(home.parents[1], "v6.0", home.parent.name, home.name, (), ())
    return list(CHECKS["PRIVATE-TEXT"].findings(submission))


@pytest.mark.parametrize("folder", ["src/llama", "code", "scripts", "documentation"])
@pytest.mark.parametrize(
    "secret",
    [
        f"hf_{made_up(34)}",
        f"ghp_{made_up(36)}",
        f"nvapi-{made_up(60)}",
        f"-----BEGIN {KEY}-----\n{made_up(300)}\n-----END {KEY}-----",
    ],
    ids=["Hugging Face", "GitHub", "NVIDIA", "private key"],
)
def test_a_credential_is_found_in_programs_and_never_shown(home, folder, secret):
    (home / folder).mkdir(parents=True, exist_ok=True)
    (home / folder / "start.sh").write_text(f"#!/bin/sh\nexport TOKEN={secret}\n")
    (finding,) = findings_of(home)
    assert (finding.severity, finding.what) == (Severity.ERROR, "a credential")
    assert finding.file == f"closed/Somebody/{folder}/start.sh"
    assert finding.value == f"{len(secret)} characters, not shown"
    assert secret[10:20] not in str(finding)


@pytest.mark.parametrize(
    "text",
    [
        f"hf_{'X' * 34}",
        "hf_token",
        "https://user:password@example.org",
        "task-specific-parameters-of-the-model",
        f"-----BEGIN {KEY}-----",
        "begins with -----BEGIN and ends",
    ],
)
def test_what_only_shows_where_a_secret_belongs_is_none(home, text):
    (home / "src" / "llama" / "main.py").write_text(f'token = "{text}"\n')
    assert findings_of(home) == []


def test_a_name_in_many_files_of_programs_is_one_finding(home):
    for number in range(3):
        (home / "src" / "llama" / f"{number}.py").write_text(f"{number}, /home/scratch.jdoe/x\n")
    (finding,) = findings_of(home)
    assert finding.what == "the home folder of a person, in 3 files of programs"
    assert (finding.file, finding.value) == ("closed/Somebody/src/llama/0.py", "scratch.jdoe")


def test_what_was_not_read_is_said(home):
    (home / "src" / "llama" / "model.bin").write_bytes(b"\0\1" + f"hf_{made_up(34)}".encode())
    (home / "src" / "llama" / "long.txt").write_text("." * LARGEST_TEXT + f" hf_{made_up(34)}")
    (home / "src" / "llama" / "exact.txt").write_text("." * LARGEST_TEXT)
    assert [(finding.severity, finding.what, finding.value) for finding in findings_of(home)] == [
        (Severity.NOTE, "binary files were not searched for private text", "1: src/llama/model.bin"),
        (
            Severity.NOTE,
            "only the first 256 KiB of large texts were searched for private text",
            "1: src/llama/long.txt",
        ),
    ]


def test_links_and_what_is_no_file_are_left_out(home):
    (home / "src" / "llama" / "link.txt").symlink_to("/etc/hostname")
    os.mkfifo(home / "src" / "llama" / "pipe.txt")
    assert findings_of(home) == []


def test_a_key_is_found_only_where_a_word_begins():
    key = f"hf_{made_up(34)}"
    assert list(keys_in(f"a {key} b {key}")) == [key, key]
    assert list(keys_in(f"half_{key}")) == []


@pytest.mark.parametrize(
    ("name", "person"),
    [
        ("rhel", False),
        ("nvidia", False),
        ("mlperf_inference_storage", False),
        ("mlperf_inference_storage_01", False),
        ("delluser", False),
        ("user01", False),
        ("Somebody", False),
        ("jane", True),
        ("jdoe", True),
        ("scratch.jdoe_sw", True),
        ("daniel", True),
        ("amdahl", True),
    ],
)
def test_accounts_that_are_no_persons_are_known_by_their_words(name, person):
    assert is_a_person(name, "somebody") is person


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("host: 10.20.30.40\n", ["10.20.30.40"]),
        ('"server_ip": "203.0.113.7",\n', ["203.0.113.7"]),
        ("http://[fd00:1::5]:8000", ["fd00:1::5"]),
        ("inet6 2001:db8::1/64", ["2001:db8::1"]),
        ('"hostname": "gpu17.example.org"', ["gpu17.example.org"]),
        ("node_name = gpu17", ["gpu17"]),
        # loopback, versions, times, names in code
        ("host: 127.0.0.1, [::1]:8000, 0000:0000::", []),
        ("tensorrt: 10.8.0.43, address: 10.8.0.433", []),
        ("12:34:56 2026:11:29 cnn_dailymail::llama3_8b abcd::efgh 1234:56:78", []),
        ("hostname: localhost, hostname: null", []),
        ('"host_processor_model_name": "AMD EPYC 9654"', []),
    ],
)
def test_names_and_addresses_of_machines_in_a_document_are_those_of_their_keys(text, words):
    assert [word for _, word in found_in(text, DOCUMENT_FORMS)] == words
