"""Windows, verdicts and figures of made runs are those of the official detector.

It is src/inference_endpoint/metrics/steady_state_diagnostics.py of mlcommons/endpoints at commit
56063590cf06ca113848577b3f69ab8fa1e21957. Where STEADY_STATE_SOURCE names that file, it judges RUNS runs, too. Its
verdicts on the first ones are stored in steady_state_official.json, and compared everywhere:
`STEADY_STATE_SOURCE=FILE python tests/endpoints/test_steady_state_official.py` writes them anew.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_series import SIZE, made_run, terms

from cm4vllm.endpoints.events import read_events
from cm4vllm.endpoints.steady_state import steady_state
from cm4vllm.rules import endpoints_rules

WINDOW = endpoints_rules().window

COMMIT = "56063590cf06ca113848577b3f69ab8fa1e21957"
STORED = Path(__file__).with_name("steady_state_official.json")
RUNS, KEPT, LOGS = 2000, 600, 60
GATING = ("tpot_p50", "tpot_p90")


@pytest.fixture(scope="module")
def detector():
    """The official detector."""
    if not (source := os.environ.get("STEADY_STATE_SOURCE")):
        pytest.skip(f"STEADY_STATE_SOURCE names no steady_state_diagnostics.py of mlcommons/endpoints at {COMMIT[:7]}")
    return loaded(Path(source))


def loaded(path):
    spec = importlib.util.spec_from_file_location("official_steady_state", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rollups(detector, samples):
    """Return the samples as the detector's own rows, one for each block."""
    rows = []
    for start in range(0, len(samples), SIZE):
        block = samples[start : start + SIZE]
        with_tpot = [sample for sample in block if sample.tpot_ns is not None]
        row = detector.SuperPassRollup(
            index=len(rows),
            n_issued=len(block),
            first_issue_ns=block[0].issued_ns,
            last_issue_ns=max(sample.issued_ns for sample in block),
            ttft_ns=[float(sample.ttft_ns) for sample in block if sample.first_ns is not None],
            tpot_ns=[sample.tpot_ns for sample in with_tpot],
            latency_ns=[
                float(sample.complete_ns - sample.issued_ns) for sample in block if sample.complete_ns is not None
            ],
            out_tokens=sum(sample.tokens_after_first for sample in with_tpot),
        )
        rows.append(row)
    return rows


def judged(detector, rows):
    """Return how many blocks the detector leaves out, and its result."""
    left_out = detector.adaptive_warmup(rows)
    return left_out, detector.build_steady_state(rows[left_out:])


def official_block(seed, rows, left_out, result):
    """Return the result in the words of point.yaml (rules §4.4); None for what a run without a window has not."""
    window, least, anomaly = result["window"], result["short_window"], result["anomaly"]
    issued = sum(row.n_issued for row in rows)
    lasts = bool(least) and least["window_duration_s"] >= terms(seed).least_seconds
    status = "windowable" if result["found"] and lasts else "insufficient_duration"
    if window is None:
        status = "insufficient_passes" if issued >= SIZE else "partial_dataset"
    if issued < SIZE:
        return {"status": status, "verdict": "not found"}
    verdict = "STEADY STATE"
    if not result["found"]:
        verdict = "not found"
    elif anomaly["detected"]:
        verdict = "anomaly"
    elif result["drifting_up"]:
        verdict = "drifting_up"
    elif any(result["global_trend"][name] == "down" for name in GATING):
        verdict = "drifting_down"
    return {
        "status": status,
        "verdict": verdict,
        "warm_up": left_out,
        "window": [left_out + window["sp_lo"], left_out + window["sp_hi"] - 1, window["n_samples"]] if window else None,
        "skipped": window["skipped_short"] if window else 0,
        "anomaly": left_out + anomaly["change_point_sp"] if anomaly["detected"] else None,
        "drift": {name: way for name, way in result["global_trend"].items() if way in ("up", "down")},
    }


def our_block(state):
    """Return a steady state of ours as that of the detector."""
    if state.status == "partial_dataset":
        return {"status": state.status, "verdict": state.verdict}
    window, ways = state.window, {"Drifting Up": "up", "Drifting Down": "down"}
    return {
        "status": state.status,
        "verdict": state.verdict,
        "warm_up": state.warm_up,
        "window": [window.super_pass_start, window.super_pass_end, window.n_samples] if window else None,
        "skipped": state.skipped,
        "anomaly": state.anomaly.super_pass if state.anomaly else None,
        "drift": {name: ways[way] for name, way in state.drift.items()},
    }


def official_figures(result):
    """Return the figures of the detector, as far as the run has a window."""
    least, anomaly = result["short_window"], result["anomaly"]
    if least is None:
        return []
    seconds = [least[key] for key in ("window_duration_s", "t_floor_s", "t_relaxation_s", "t_precision_s")]
    times = [result["tps"]["system"], result["ttft"]["p90"] / 1e6, result["tpot"]["p90"] / 1e6]
    return [*seconds, *times, *([anomaly["delta_pct"]] if anomaly["detected"] else [])]


def our_figures(state):
    if state.window is None:
        return []
    least, figures = state.least, state.figures
    seconds = [state.window.duration_s, least.floor_s, least.latencies_s, least.precision_s]
    times = [figures.system_tps, figures.ttft_p90_ms, figures.tpot_p90_ms]
    return [*seconds, *times, *([state.anomaly.change_percent] if state.anomaly else [])]


def in_short(block):
    """Return a block as a line of the stored file."""
    window = " ".join(map(str, block.get("window") or ["none"]))
    drift = " ".join(f"{name}={way}" for name, way in sorted(block.get("drift", {}).items()))
    numbers = f"{block.get('warm_up', 0)} {block.get('skipped', 0)} {block.get('anomaly')}"
    return f"{block['status']}, {block['verdict']}, {numbers}, {window}, {drift}"


def test_the_stored_verdicts_of_the_detector_are_reached():
    stored = json.loads(STORED.read_text())
    assert stored["commit"] == COMMIT
    assert len(stored["runs"]) == KEPT
    for seed, line in enumerate(stored["runs"]):
        assert in_short(our_block(steady_state(made_run(seed), terms(seed), WINDOW))) == line, f"seed {seed}"


def test_the_stored_runs_have_each_status_and_each_verdict():
    runs = [line.split(", ") for line in json.loads(STORED.read_text())["runs"]]
    verdicts = {verdict for status, verdict, *_ in runs if status == "windowable"}
    assert verdicts == {"STEADY STATE", "drifting_up", "drifting_down", "anomaly"}
    assert {status for status, verdict, *_ in runs if verdict == "not found"} == {
        "insufficient_duration",
        "insufficient_passes",
        "partial_dataset",
    }


def test_windows_verdicts_and_figures_are_those_of_the_detector(detector):
    for seed in range(RUNS):
        samples = made_run(seed)
        rows, state = rollups(detector, samples), steady_state(samples, terms(seed), WINDOW)
        left_out, result = judged(detector, rows)
        assert our_block(state) == official_block(seed, rows, left_out, result), f"seed {seed}"
        assert our_figures(state) == pytest.approx(official_figures(result), rel=1e-9, abs=0), f"seed {seed}"


def test_logs_are_read_as_the_detector_reads_them(detector, tmp_path):
    for seed in range(LOGS):
        path = write_log(tmp_path / f"{seed}.jsonl", made_run(seed))
        rows = detector.build_super_pass_series(str(path), SIZE, lambda texts: [len(text.split()) for text in texts])
        state = steady_state(read_events(path, lambda text: len(text.split())), terms(seed), WINDOW)
        left_out, result = judged(detector, rows)
        assert our_block(state) == official_block(seed, rows, left_out, result), f"seed {seed}"
        assert our_figures(state) == pytest.approx(official_figures(result), rel=1e-9, abs=0), f"seed {seed}"


def write_log(path, samples):
    """Write the events of a run in the order of their times; chunks of reasoning and of the answer in turn."""
    events = [(samples[0].issued_ns, 0, "session.start_performance_tracking", "", None)]
    last = max(sample.issued_ns for sample in samples)
    for number, sample in enumerate(samples):
        words = ["w", *[" w"] * sample.tokens_after_first]
        content = ["TextModelOutput", words] if number % 2 else ["TextModelOutput", words[3:], words[:3]]
        events.append((sample.issued_ns, 1 + number, "sample.issued", f"u{number}", None))
        if sample.first_ns is not None:
            events.append((sample.first_ns, 2 + number, "sample.recv_first", f"u{number}", None))
        if sample.complete_ns is not None:
            events.append((sample.complete_ns, 3 + number, "sample.complete", f"u{number}", content))
    events.append((last, len(samples) + 3, "session.stop_performance_tracking", "", None))
    lines = (
        json.dumps({"event_type": kind, "timestamp_ns": at, "sample_uuid": sample, "data": data})
        for at, _, kind, sample, data in sorted(events, key=lambda event: event[:2])
    )
    path.write_text("".join(line + "\n" for line in lines))
    return path


def main():
    detector, lines = loaded(Path(os.environ["STEADY_STATE_SOURCE"])), []
    for seed in range(KEPT):
        rows = rollups(detector, made_run(seed))
        lines.append(in_short(official_block(seed, rows, *judged(detector, rows))))
    STORED.write_text(json.dumps({"commit": COMMIT, "runs": lines}, indent=0) + "\n")


if __name__ == "__main__":
    main()
