"""The client's event log, read into a row for each sample."""

import json
import os

import pytest

from cm4vllm.common.errors import CmError
from cm4vllm.endpoints.events import read_events

SIZE = 20
MS = 1_000_000


def words(text):
    return len(text.split())


def write_log(path, levels, *, before=0, cut=False):
    """Write the events of one pass for each level of TPOT in ms: 11 words an answer, the first one alone.

    `before` are samples ahead of the performance run, which do not count; with `cut` the last line has no end.
    """
    clock, lines = 0, []

    def event(kind, uuid="", data=None, after=0):
        nonlocal clock
        clock += int(after * MS)
        lines.append(
            json.dumps({"event_type": kind, "timestamp_ns": clock, "sample_uuid": uuid, "turn": None, "data": data})
        )

    def sample(uuid, tpot):
        event("sample.issued", uuid, ["PromptData", None, [1, 2], None, None, None, None, None])
        event("sample.recv_first", uuid, after=5)
        event("sample.complete", uuid, ["TextModelOutput", ["w", " w" * 10], None], after=10 * tpot)

    for number in range(before):
        sample(f"before-{number}", 50)
    event("session.start_performance_tracking")
    for block, level in enumerate(levels):
        for number in range(SIZE):
            # A spread of 2 %, the same in each pass.
            sample(f"{block}-{number}", level * (0.98 + 0.002 * number))
    event("session.stop_performance_tracking")
    sample("after", 50)
    path.write_text("\n".join(lines) + ("" if cut else "\n"))
    return path


def answered(samples):
    return sum(sample.complete_ns is not None for sample in samples)


def test_times_and_tokens_are_those_of_the_events(tmp_path):
    samples = read_events(write_log(tmp_path / "events.jsonl", [10], before=3), words)
    assert answered(samples) == len(samples) == SIZE
    first = samples[0]
    assert (first.ttft_ns, first.tpot_ns) == (5 * MS, 9.8 * MS)
    assert (first.tokens, first.tokens_after_first) == (11, 10)


def test_a_line_that_was_cut_off_is_left_out_and_another_one_is_refused(tmp_path):
    path = write_log(tmp_path / "events.jsonl", [10], cut=True)
    path.write_text(path.read_text()[:-20])
    assert answered(read_events(path, words)) == SIZE
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(CmError, match="line 1 of .* is no event"):
        read_events(path, words)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CmError, match="cannot be read"):
        read_events(tmp_path / "pipe", words)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            '{"event_type": "sample.complete", "timestamp_ns": 1, "data": ' + "[" * 10**5 + "]" * 10**5 + "}",
            "nested too deep",
        ),
        (f'{{"event_type": "sample.issued", "timestamp_ns": {10**400}}}', "timestamp_ns"),
        ('{"event_type": "sample.issued", "timestamp_ns": -1}', "timestamp_ns"),
        ('{"event_type": "sample.issued", "timestamp_ns": "1"}', "timestamp_ns"),
        ('{"event_type": ["sample.issued"], "timestamp_ns": 1}', "event_type"),
        ('["sample.issued", 1]', "object"),
        ("\udcff".encode(errors="surrogateescape"), "malformed"),
    ],
    ids=["deep", "large", "negative", "text", "list", "array", "bytes"],
)
def test_an_odd_line_is_named_with_its_number_and_the_field(tmp_path, line, why):
    path = write_log(tmp_path / "events.jsonl", [10])
    odd = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(path.read_bytes() + odd + b"\n")
    with pytest.raises(CmError, match=r"line \d+ of .*events.jsonl is no event of the client") as refused:
        read_events(path, words)
    assert why in refused.value.cause
    assert "\n" not in refused.value.cause


def test_a_sample_that_is_issued_or_answered_again_stays_one(tmp_path):
    """As the official detector counts: the last issue before the first chunk, the first chunk, and one answer."""
    events = [
        ("session.start_performance_tracking", 0, ""),
        ("sample.issued", 1, ""),
        ("sample.issued", 1, "a"),
        ("sample.issued", 2, "b"),
        ("sample.issued", 3, "a"),
        ("sample.recv_first", 10, "a"),
        ("sample.issued", 11, "a"),
        ("sample.recv_first", 12, "a"),
        ("sample.complete", 20, "a"),
        ("sample.complete", 21, "a"),
        ("sample.complete", 22, "b"),
        ("sample.issued", 30, "a"),
    ]
    path = tmp_path / "events.jsonl"
    answer = ["TextModelOutput", ["w", " w w"]]
    path.write_text(
        "".join(
            json.dumps(
                {"event_type": kind, "timestamp_ns": at, "sample_uuid": of, "data": None if of == "b" else answer}
            )
            + "\n"
            for kind, at, of in events
        )
    )
    first, second, again = read_events(path, words)
    assert (first.issued_ns, first.first_ns, first.complete_ns, first.tokens_after_first) == (3, 10, 20, 2)
    assert (first.ttft_ns, first.latency_ns, first.tpot_ns) == (7, 17, 5.0)
    assert (second.latency_ns, second.ttft_ns, second.tpot_ns) == (20, None, None)
    assert (again.issued_ns, again.latency_ns) == (30, None)
