"""TEST06: our checks refuse all that the official verification refuses, and some of what it lets pass."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
from compliance_logs import entry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cm4vllm.compliance import test06 as ours
from cm4vllm.records.logs.answers import read_answers
from cm4vllm.rules import compliance_rules

EOS = 2
(FILE,) = [file.name for file in compliance_rules("TEST06").files]


def verdicts(path, *, eos=frozenset({EOS}), first_token=True):
    return {
        check.name: check.passed for check in ours.verdict(read_answers(path), eos=eos, first_token=first_token).checks
    }


PASSED = {ours.FIRST_TOKEN: True, ours.EOS: True, ours.SAMPLE_LENGTH: True}


@pytest.mark.parametrize("tokens", [[5, 6, EOS], [5, 6], [EOS], [5, EOS, 6]])
def test_a_right_answer_passes(write_log, tokens):
    assert verdicts(write_log([entry(tokens, first=tokens[:1])])) == PASSED


@pytest.mark.parametrize(
    ("wrong", "failed", "words"),
    [
        (entry([5, 6], first=[7]), ours.FIRST_TOKEN, "reported [7], the answer begins with [5]"),
        (entry([5, 6], first=[]), ours.FIRST_TOKEN, "no first token was reported"),
        (entry([5, EOS, EOS], first=[5]), ours.EOS, "it ends with 2 end tokens"),
        (entry([EOS, EOS], first=[EOS]), ours.EOS, "it ends with 2 end tokens"),
        (entry([5, 6], first=[5], count=3), ours.SAMPLE_LENGTH, "3 tokens were reported, it has 2"),
        (entry([5, 6], first=[5], dtype=np.int64), ours.SAMPLE_LENGTH, "the tokens may have 64 bits"),
    ],
)
def test_a_wrong_answer_among_right_ones_fails_its_check_alone(write_log, wrong, failed, words):
    log = write_log([entry([5, EOS], first=[5], index=1), wrong])
    assert verdicts(log) == PASSED | {failed: False}
    (check,) = [
        check for check in ours.verdict(read_answers(log), eos={EOS}, first_token=True).checks if check.passed is False
    ]
    assert check.found.startswith("1 of 2 answers do not") and words in check.found


def test_each_end_token_of_a_model_counts(write_log):
    log = write_log([entry([5, 128008, 128009], first=[5])])
    assert verdicts(log, eos={128001, 128008, 128009})[ours.EOS] is False
    assert verdicts(log, eos={128009})[ours.EOS] is True


# --- against the official verification --------------------------------------------------------------------------------


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tokens = st.lists(st.sampled_from([1, EOS, 3]), min_size=1, max_size=4)
entries = st.lists(
    st.builds(
        lambda ids, first, more, wide: entry(
            ids, first=ids[:1] if first else [3], count=len(ids) + more, dtype=np.int64 if wide else np.int32
        ),
        tokens,
        st.booleans(),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=3,
)


def starts_with_two_ends(log):
    """Return True for an answer of end tokens alone: the official check does not read an answer's first token."""
    return any(len(answer.tokens) > 1 and set(answer.tokens) == {EOS} for answer in read_answers(log))


@pytest.mark.parametrize("commit", ["newest", "v4.1"])
def test_the_decisions_are_those_of_the_official_verification(write_log, official, commit):
    script = loaded(official(commit, "TEST06"))

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(entries)
    def compare(log_entries):
        log, data = write_log(log_entries), json.loads(json.dumps(log_entries))
        verdict = verdicts(log)
        assert verdict[ours.FIRST_TOKEN] == script.first_token_check(data, np.int32)
        assert verdict[ours.SAMPLE_LENGTH] == script.sample_len_check(data, np.int32)
        if not starts_with_two_ends(log):
            assert verdict[ours.EOS] == script.eos_check(data, np.int32, EOS)

    compare()


def test_what_only_we_refuse(write_log, official):
    """Each way in which the official verification lets a wrong log pass; one that it refuses is to be left out here."""
    script = loaded(official("newest", "TEST06"))
    repeated, ends, empty = entry([5, 9, 9, 9], first=[5]), entry([EOS, EOS], first=[EOS]), entry([5, 6], first=[])
    assert script.eos_check([repeated], np.int32, "9") is True  # -e gives it a text
    assert verdicts(write_log([repeated]), eos={9})[ours.EOS] is False
    assert script.eos_check([ends], np.int32, EOS) is True
    assert verdicts(write_log([ends]))[ours.EOS] is False
    assert script.first_token_check([empty], np.int32) is True
    assert verdicts(write_log([empty]))[ours.FIRST_TOKEN] is False


@pytest.mark.parametrize("commit", ["newest", "v4.1"])
@pytest.mark.parametrize("scenario", ["Offline", "Server"])
@pytest.mark.parametrize("ids", [[5, 6, EOS], [5, EOS, EOS]])
def test_the_report_is_the_official_one_line_by_line(tmp_path, write_log, official, commit, scenario, ids):
    first = scenario != "Offline"
    log = write_log([entry(ids, first=ids[:1] if first else None)])
    words = ["-c", log.parent, "-o", tmp_path / "out", "-s", scenario, "-d", "int32"]
    subprocess.run([sys.executable, official(commit, "TEST06"), *words], check=True, capture_output=True)
    text = (tmp_path / "out" / "TEST06" / FILE).read_text()
    assert ours.verdict(read_answers(log), eos={EOS}, first_token=first).text == text
