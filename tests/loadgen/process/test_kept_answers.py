"""An accuracy run that was stopped goes on: LoadGen gets what is kept, the server is asked for the rest."""

import errno
import os
import time
from array import array

import pytest
from fake_vllm import Behaviour, FakeVllm, Fault, expected_tokens, prompt

from cm4vllm.common.errors import NotWritable, RunFailed
from cm4vllm.loadgen.process.kept_answers import Answer, AnswerWriter, begin_piece, file_of, kept_answers, pieces
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_accuracy_log

SENT = {index: expected_tokens(prompt(index), 128, 2) for index in range(64)}


def test_no_answer_is_lost_and_none_is_asked_for_twice(tmp_path, make_settings):
    folder = tmp_path / "run"
    dies = Behaviour(fault=lambda number: Fault.STATUS_400 if number >= 40 else Fault.NONE)
    with FakeVllm(dies) as server:
        settings = make_settings(server.endpoint, "Server", "accuracy", max_in_flight=4)
        with pytest.raises(RunFailed):
            run(settings, folder, keep_answers=True)
        kept = kept_answers(file_of(folder))
        assert len(kept) == 40
        assert all(ids(answer) == SENT[index] for index, answer in kept.items())
        server.behaviour.fault = lambda number: Fault.NONE
        server.bodies.clear()
        record = run(settings, folder, keep_answers=True)
        assert len(server.bodies) == 24
    assert {index: tokens.tolist() for index, tokens, _ in read_accuracy_log(folder / ACCURACY_LOG)} == SENT
    assert (record.client.requests, record.client.completed, record.client.kept) == (64, 64, 40)
    assert record.client.completion_tokens == sum(map(len, SENT.values()))
    assert record.client.prompt_tokens == sum(len(prompt(index)) for index in range(64))
    assert [piece.answers for piece in record.pieces] == [40, 24]
    assert not file_of(folder).exists()


def answer_to(sample):
    """An answer of two token ids."""
    return Answer(array("i", [sample, 7]).tobytes(), 2, at_length=sample % 2 == 1)


def ids(answer):
    return array("i", answer.data).tolist()


def write(path, *samples):
    writer = AnswerWriter(path)
    writer.write([(sample, answer_to(sample)) for sample in samples])
    writer.close()


def test_what_is_torn_or_changed_or_of_other_settings_is_not_kept(tmp_path):
    path = tmp_path / "run.answers"
    assert begin_piece(path, "a").kept == 0
    write(path, 1, 2)
    whole = path.read_bytes()
    changed = whole.replace(answer_to(2).data.hex().encode(), answer_to(3).data.hex().encode())
    path.write_bytes(changed + b'{"sample":5,"s":')
    assert kept_answers(path) == {1: answer_to(1)}
    assert begin_piece(path, "a").kept == 1
    write(path, 2)
    assert sorted(kept_answers(path)) == [1, 2]
    assert [piece.answers for piece in pieces(path)] == [1, 1]
    assert len({piece.sha256 for piece in pieces(path)}) == 2
    assert begin_piece(path, "b").kept == 0
    assert kept_answers(path) == {}
    path.write_bytes(b"not of this kind\n")
    assert begin_piece(path, "b").kept == 0


def test_answers_are_synced_while_they_come_and_a_disk_that_fails_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("cm4vllm.loadgen.process.kept_answers.SYNC_S", 0.01)
    path = tmp_path / "run.answers"
    begin_piece(path, "a")
    writer = AnswerWriter(path)
    before = writer.synced
    writer.write([(1, answer_to(1))])
    deadline = time.monotonic() + 10
    while writer.synced == before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert before < writer.synced == path.stat().st_size

    def fails(_handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fails)
    writer.write([(2, answer_to(2))])
    with pytest.raises(NotWritable, match="cannot write"):
        writer.close()
