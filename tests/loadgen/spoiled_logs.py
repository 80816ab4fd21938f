"""Logs of LoadGen as it writes them, and what a disk, a copy, a second run or a person can make of them.

`performance_log` writes the lines of a log; `spoiled` gives damaged copies of one, the same ones for the same seed.
"""

import json
from collections.abc import Iterator
from random import Random

PREFIX = ":::MLLOG "
#: Values that take the place of another one: each type of JSON, and texts that no parser takes.
ODD_VALUES = (
    *"null true false 0 -1 -0.0 1E5 1e308 1e999".split(),
    "9" * 25,
    "9" * 300,
    "1" + "0" * 308,
    "9" * 400,
    "9" * 5000,
    "NaN",
    "-Infinity",
    "[NaN]",
    '""',
    '"nan"',
    '"VALID"',
    '"false"',
    '"\\u0000"',
    '"\\u001b[31m"',
    '"\\ud800"',
    "[]",
    "{}",
    "[" * 3000 + "]" * 3000,
)
#: Lines that come between others, or instead of one.
FOREIGN = (
    b"\n",
    b"hello\n",
    b":::\n",
    b":::MLLOG\n",
    b"[]\n",
    b"\0\n",
    b"}}\n",
    b"\xff\xfe\n",
    b"\r\n",
    b'{"key": 1}\n',
    b":::MLLOG \n",
    b":::MLLOG null\n",
    b":::MLLOG " + b"[" * 100_000 + b"\n",
    b"\xef\xbb\xbf",
    b"x" * 10_000_000,
)

_SERVER = {
    "result_perf_constraints_met": True,
    "early_stopping_ttft_result": " * Run successful.",
    "early_stopping_tpot_result": " * Run successful.",
    "result_query_count": 4096,
    "result_overlatency_query_count": 4096,
    "result_scheduled_samples_per_sec": 5.00981,
    "result_completed_samples_per_sec": 4.9923,
    "result_max_latency_ns": 89340864416,
    "result_99.00_percentile_latency_ns": 72002088729,
    "result_first_token_mean_latency_ns": 210263052,
    "result_first_token_99.00_percentile_latency_ns": 502139635,
    "result_token_throughput": 1.32179e-08,
    "result_time_per_output_token_99.00_percentile_ns": 94055812,
    "result_time_to_output_token_mean": 75244828,
    "result_completed_tokens_per_second": 1468.24,
}
_OFFLINE = {
    "early_stopping_ttft_result": "",
    "early_stopping_tpot_result": "",
    "result_query_count": 1,
    "result_samples_per_second": 5.37058,
    "result_max_latency_ns": 4576041253039,
    "result_99.00_percentile_latency_ns": 4576039016029,
    "result_tokens_per_second": 1577.11,
}


def performance_log(
    scenario: str, *, version: str = "6.0.17", valid: bool = True, pid: int = 7, error: bool = False
) -> list[bytes]:
    """Return the lines of the log of a run: one that lasted 819 s (Server), or issued 24,576 samples (Offline).

    An invalid one was too short. With `error`, LoadGen logged an error entry, and counted it where its version does.
    """
    entries: dict[str, object] = {
        "loadgen_version": f"{version} @ d6147c7eb7",
        "loadgen_build_date_local": "2026-01-01T00:00:00",
        "test_datetime": "2026-11-22T22:20:02Z",
        "sut_name": "PySUT",
        "qsl_name": "PyQSL",
        "qsl_reported_total_count": 24576,
    }
    for kind in ("requested", "effective"):
        entries |= {
            f"{kind}_{key}": value
            for key, value in {
                "scenario": scenario,
                "test_mode": "PerformanceOnly",
                "samples_per_query": 1,
                "target_qps": 5.0,
                "min_duration_ms": 600000,
                "min_query_count": 100,
                "qsl_rng_seed": 2085463073848966840,
                "sample_index_rng_seed": 2747215439041700203,
                "schedule_rng_seed": 16159082839903944936,
            }.items()
        }
    entries["requested_use_token_latencies"] = True
    entries |= {
        "generic_message": "Starting performance mode",
        "loaded_qsl_set": list(range(30)),
        "generated_query_count": 4096 if scenario == "Server" else 1,
        "generated_samples_per_query": 1 if scenario == "Server" else 24576,
        "power_begin": "11-22-2026 22:20:02.391",
        "power_end": "11-22-2026 23:40:17.663",
    }
    if error:
        entries["error_runtime"] = "Ran out of generated queries to issue before the minimum was reached"
    entries |= {
        "result_validity": "VALID" if valid else "INVALID",
        "result_min_duration_met": valid,
        "result_min_queries_met": True,
        "early_stopping_met": True,
        "result_invalid_reason": "",
    }
    entries |= _SERVER if scenario == "Server" else _OFFLINE
    if version.startswith("6."):
        entries["num_errors"] = int(error)
    return [_line(key, value, at, pid) for at, (key, value) in enumerate(entries.items())]


def _line(key: str, value: object, at: int, pid: int) -> bytes:
    metadata = {
        "is_error": key.startswith("error_"),
        "is_warning": False,
        "file": "test_settings_internal.cc",
        "line_no": 200 + at,
        "pid": pid,
        "tid": pid,
    }
    entry = {
        "key": key,
        "value": value,
        "time_ms": at * 0.021,
        "namespace": "mlperf::logging",
        "event_type": "POINT_IN_TIME",
        "metadata": metadata,
    }
    return f"{PREFIX}{json.dumps(entry)}\n".encode()


def key_of(line: bytes) -> str:
    return json.loads(line.removeprefix(PREFIX.encode()))["key"]


def with_value(line: bytes, value: str) -> bytes:
    """Return a line with the JSON text `value` in the place of its value."""
    entry = json.loads(line.removeprefix(PREFIX.encode()))
    entry["value"] = "@@"
    return (PREFIX + json.dumps(entry).replace('"@@"', value) + "\n").encode()


def spoiled(lines: list[bytes], other: list[bytes], chance: Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` damaged copies of a log, each with the kind of its damage; `other` is the log of a second run."""
    kinds = list(_KINDS)
    for _ in range(count):
        kind = chance.choice(kinds)
        yield kind, _KINDS[kind](list(lines), list(other), chance)


def cuts(lines: list[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield a log cut at the end of each line, just before it, just after its prefix, and in the middle."""
    whole, begin = b"".join(lines), 0
    for line in lines:
        end = begin + len(line)
        for at in (begin + 3, begin + len(PREFIX), (begin + end) // 2, end - 2, end - 1, end):
            if at < len(whole) - 1:  # the newline at the very end says nothing
                yield "cut", whole[:at]
                yield "cut, with a newline", whole[:at] + b"\n"
        begin = end


def _place(lines: list[bytes], chance: Random) -> int:
    return chance.randrange(len(lines))


def _span(data: bytes, chance: Random) -> tuple[int, int]:
    begin = chance.randrange(len(data))
    return begin, min(len(data), begin + int(chance.expovariate(1 / 200)) + 1)


def _cut(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    data = b"".join(lines)
    return data[: chance.randrange(len(data) - 1)]


def _headless(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    data = b"".join(lines)
    return data[chance.randrange(1, len(data)) :]


def _twice(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    lines.insert(_place(lines, chance), lines[_place(lines, chance)])
    return b"".join(lines)


def _appended(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    a, b, some = b"".join(lines), b"".join(other), b"".join(other[: _place(other, chance)])
    cut = [a + b[: chance.randrange(len(b))], b[: chance.randrange(1, len(b))] + a]
    return chance.choice([a + b, b + a, a + a, a + some, some + a, *cut])


def _interleaved(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    merged = []
    while lines or other:
        source = lines if lines and (not other or chance.random() < 0.5) else other
        merged.append(source.pop(0))
    return b"".join(merged)


def _overwritten(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    """Two processes that write to one file, each at its own place: what the second truncated is a hole of zeros."""
    a, b = b"".join(lines), b"".join(other)
    hole = b"\0" * chance.randrange(1, 5000)
    rest = a[chance.randrange(1, len(a)) :]
    return chance.choice(
        [b[: chance.randrange(len(b))] + hole + rest, a[: chance.randrange(len(a))] + hole, hole + rest]
    )


def _holes(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    data = bytearray(b"".join(lines))
    begin, end = _span(data, chance)
    data[begin:end] = b"\0" * (end - begin)
    return bytes(data)


def _removed(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    """A part of a line is missing. Two lines whose ends and beginnings fit together read as one that is whole."""
    at = _place(lines, chance)
    begin, end = _span(lines[at][:-1], chance)
    lines[at] = lines[at][:begin] + lines[at][end if begin else end - 1 :]
    return b"".join(lines)


def _garbled(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    data = bytearray(b"".join(lines))
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(data))
        data[at : at + chance.randint(0, 1)] = bytes([chance.randrange(256)])
    return bytes(data)


def _foreign(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    lines.insert(_place(lines, chance), chance.choice(FOREIGN))
    return b"".join(lines)


def _reordered(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    chance.shuffle(lines)
    return b"".join(lines)


def _endings(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    data = b"".join(lines)
    if chance.random() < 0.5:
        return data.replace(b"\n", chance.choice([b"\r\n", b"\r", b"\n\n", b"\n\r", b" \n"]))
    return b"".join(line[:-1] + b"\r\n" if chance.random() < 0.5 else line for line in lines)


def _encoded(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    text = b"".join(lines).decode()
    others = [text.encode(name) for name in ("utf-16", "utf-16-le", "utf-8-sig", "utf-32")]
    return chance.choice([*others, b"", b"\n", text.encode() + b"\0", text.encode() + b"\x1a"])


def _valued(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    at = _place(lines, chance)
    lines[at] = with_value(lines[at], chance.choice(ODD_VALUES))
    return b"".join(lines)


def _nested(lines: list[bytes], other: list[bytes], chance: Random) -> bytes:
    """A member that nobody asks for, deep or long, in an entry."""
    at, depth = _place(lines, chance), chance.choice([10, 3000, 100_000])
    member = chance.choice(
        [b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b'"' + b"x" * depth + b'"']
    )
    lines[at] = lines[at].replace(b'"namespace":', b'"more": ' + member + b', "namespace":')
    return b"".join(lines)


_KINDS = {
    "cut": _cut,
    "headless": _headless,
    "twice": _twice,
    "appended": _appended,
    "interleaved": _interleaved,
    "overwritten": _overwritten,
    "holes": _holes,
    "removed": _removed,
    "garbled": _garbled,
    "foreign": _foreign,
    "reordered": _reordered,
    "endings": _endings,
    "encoded": _encoded,
    "valued": _valued,
    "nested": _nested,
}
#: After these, a log that reads as valid has the same figures as before.
KEEPS_FIGURES = frozenset(_KINDS) - {"garbled", "valued", "removed"}
