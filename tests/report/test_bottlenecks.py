"""The bottleneck of a run: named correctly on simulated servers, and left out where the records do not show it."""

import re
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed
from simulated_server import SimulatedServer

from cm4vllm.records.client import ProcessRecord, Spread
from cm4vllm.records.run import MachineLoad
from cm4vllm.report.final_table import final_table
from cm4vllm.report.summary import write_summary
from cm4vllm.report.tree_texts import measurement_readmes
from cm4vllm.results.campaign_results import load
from cm4vllm.results.figures import Figure, Figures, Source
from cm4vllm.results.judgement.bottlenecks import Cause, why
from cm4vllm.results.judgement.campaign_verdict import missing_scenarios, sentence
from cm4vllm.rules import Scenario

pytestmark = pytest.mark.xdist_group("runs-report")  # one process makes the runs of these files


@pytest.fixture(scope="session")
def offline(real_runs):
    return load(real_runs).results[0].performance


@pytest.fixture(scope="session")
def paced(real_runs):
    return load(real_runs).results[1].performance


def explained(part, server, metrics, *, http_ms=0.0, load=None, **client):
    """Return what is said of a run of this server; `http_ms` pass outside of its engine, `load` is the machine's."""
    run = part.run
    argv = [*run.settings.server.argv, "--max-num-seqs", str(server.sequences)]
    settings = changed(run.settings, server=changed(run.settings.server, argv=argv), max_in_flight=10_000)
    figures = {figure.name: figure for figure in part.figures.values()}
    if part.latencies:
        tpot = sorted((end - first) / (answer - 1) for _, _, first, end, answer in server.times)
        for name, spans, more in (("ttft", server.spans(0, 2), http_ms), ("tpot", tpot, 0.0)):
            for part_of, value in (("p99", spans[int(0.99 * len(spans))]), ("mean", sum(spans) / len(spans))):
                figures[f"{name}_{part_of}"] = Figure(f"{name}_{part_of}", value + more, "ms", Source("log", name))
    return why(
        replace(
            part,
            figures=Figures(figures.values()),
            run=changed(
                run, settings=settings, server_metrics=metrics, client=changed(run.client, **client), machine_load=load
            ),
        )
    )


def simulated(part, *, qps=0.0, prompt=100, answer=60, **limits):
    server = SimulatedServer(**limits)
    return explained(part, server, server.run(qps=qps, prompt=prompt, answer=answer))


@pytest.mark.parametrize(
    ("scenario", "server", "cause", "words"),
    [
        ("offline", {"sequences": 32}, Cause.DECODE, ["--max_num_seqs", "32 of 32 sequences"]),
        ("offline", {"sequences": 1000, "answer": 300}, Cause.DECODE, ["--tp_size"]),
        (
            "offline",
            {"sequences": 1000, "prompt": 350, "answer": 300},
            Cause.STEPS,
            ["--tp_size", "the server read 105,000 prompt tokens and generated "],
        ),
        (
            "offline",
            {"sequences": 8, "prompt": 4000, "answer": 2, "prefill_ms_per_token": 0.2},
            Cause.PREFILL,
            ["--max_num_batched_tokens"],
        ),
        # --kv_cache_space is the option of the CPU backend, which this server runs.
        ("offline", {"kv_tokens": 2000}, Cause.KV_CACHE, ["preempted", "--kv_cache_space"]),
        ("paced", {"qps": 60, "kv_tokens": 2000}, Cause.KV_CACHE, ["preempted", "--kv_cache_space"]),
        ("paced", {"qps": 100, "sequences": 16}, Cause.QUEUE, ["--max_num_seqs", "--server_target_qps"]),
        ("paced", {"qps": 10, "sequences": 64, "step_ms": 95}, Cause.DECODE, ["TPOT p99"]),
        (
            "paced",
            {"qps": 0.2, "sequences": 64, "step_ms": 2, "prompt": 12000, "answer": 200, "prefill_ms_per_token": 0.15},
            Cause.PREFILL,
            [],
        ),
        ("paced", {"qps": 5, "sequences": 64}, Cause.LOAD, ["a higher --server_target_qps"]),
    ],
)
def test_the_cause_is_named_with_the_option_that_would_move_it(scenario, server, cause, words, request):
    explanation = simulated(request.getfixturevalue(scenario), **server)
    said = "\n".join([explanation.words, explanation.option, *explanation.evidence])
    assert explanation.cause is cause and [each for each in words if each not in said] == []


def test_the_option_of_a_gpu_servers_kv_cache_is_another_one(offline):
    run = changed(
        offline.run, settings=changed(offline.run.settings, server=changed(offline.run.settings.server, env={}))
    )
    explanation = simulated(replace(offline, run=run), kv_tokens=2000)
    assert "--gpu_memory_utilization" in explanation.option


def test_time_that_the_engine_does_not_explain_is_around_it(paced):
    """As on a host with too few processors: the engine's queue and prefill take 10 ms, TTFT 3 s."""
    server = SimulatedServer()
    explanation = explained(paced, server, server.run(qps=5), http_ms=3000)
    assert explanation.cause is Cause.HOST
    assert "are the engine's queue and prefill" in explanation.evidence[0]


def test_a_late_client_is_the_client(paced):
    server, lag = SimulatedServer(), Spread(p50_ms=900, p99_ms=2500, max_ms=3000)
    late = ProcessRecord(name="worker 1", cpu_s=3, wall_s=3, peak_memory_mib=40, loop_lag=lag, issue_lag=lag)
    explanation = explained(paced, server, server.run(qps=5), http_ms=3000, processes=[late])
    assert explanation.cause is Cause.CLIENT


def test_a_client_without_headroom_is_named_before_all_else(offline):
    server = SimulatedServer(sequences=32)
    check = changed(offline.run.client.self_check, capacity_qps=1.0)
    explanation = explained(offline, server, server.run(), self_check=check)
    assert explanation.cause is Cause.CLIENT and "--num_workers" in explanation.option


@pytest.mark.parametrize(
    ("busy_s", "own_s", "stolen_s", "bound"),
    [
        (1281.64, 293.17, 2.67, True),  # of a full-length run beside three others
        (1270.0, 900.0, 0.0, True),
        (900.0, 600.0, 380.0, True),  # a hypervisor's other machines
        (1281.64, 1200.0, 0.0, False),
        (1000.0, 293.17, 0.0, False),  # processors were idle
        (1281.64, None, 0.0, False),
    ],
)
def test_other_work_that_takes_the_processors_is_named_before_the_server(
    offline, paced, busy_s, own_s, stolen_s, bound
):
    taken = MachineLoad(processors=2, wall_s=642.404, busy_s=busy_s, own_s=own_s, stolen_s=stolen_s)
    server = SimulatedServer(sequences=32)
    explanation = explained(offline, server, server.run(), load=taken)
    assert (explanation.cause is Cause.HOST) is bound
    assert ("end the other processes" in explanation.option) is bound
    light = SimulatedServer()
    assert explained(paced, light, light.run(qps=5), load=taken).cause is Cause.LOAD


def test_nothing_is_said_without_enough_evidence(offline, paced):
    assert why(offline) is None  # no metrics of the server
    server = SimulatedServer(sequences=32)
    metrics = server.run()
    assert explained(offline, server, metrics) is not None
    assert explained(offline, server, changed(metrics, samples=4)) is None
    assert explained(offline, server, changed(metrics, decode=None)) is None
    assert explained(offline, server, changed(metrics, queue=changed(metrics.queue, requests=29))) is None
    assert why(replace(offline, run=None)) is None


def test_prompts_that_are_read_between_the_steps_of_others_are_not_taken_for_decoding(offline):
    """A step that also reads prompts delays every running request: by the phases alone that cannot be told apart."""
    assert simulated(offline, sequences=64, prompt=4000, answer=4, prefill_ms_per_token=0.2) is None


def test_nothing_is_said_where_no_phase_stands_out(offline):
    server = SimulatedServer(sequences=300)
    metrics = server.run()
    even = changed(
        metrics, prefill=changed(metrics.prefill, mean_ms=40.0), decode=changed(metrics.decode, mean_ms=60.0)
    )
    assert explained(offline, server, even) is None


# --- a result whose queries follow one another: its figure is a latency, and so is the target that LoadGen was given


@pytest.fixture
def report(single_stream):
    return load(single_stream)


def test_its_figure_is_the_90th_percentile_of_the_latency(report):
    part = report.results[0].performance
    assert part.valid and part.metric.name == "latency_p90"
    assert part.metric.source.field == "result_90.00_percentile_latency_ns"
    assert {latency.name: latency.limit for latency in part.latencies} == {"TTFT": None, "TPOT": None}
    assert re.search(r"SingleStream  [\d.]+ ms \(latency p90\)", final_table(report))
    assert "ms (latency p90) in the SingleStream scenario" in sentence(report)
    assert missing_scenarios(report) == [Scenario.OFFLINE]


def test_its_pages_name_the_expected_latency_and_no_target_rate(report):
    write_summary(report)
    words = "1.33 x the mean latency of SingleStream latency, 18.75 ms"
    for page in (report.page.read_text(), measurement_readmes(report)[Scenario.SINGLE_STREAM]):
        assert "Expected latency" in page and f"25.0 ms, {words}" in page
        assert "Target QPS" not in page
        assert "no limit" in page


@pytest.mark.parametrize(("prompt_tokens", "answer", "cause"), [(100, 60, Cause.DECODE), (9000, 4, Cause.PREFILL)])
def test_what_bound_it_is_the_phase_that_takes_most_of_a_request(report, prompt_tokens, answer, cause):
    metrics = SimulatedServer().run(qps=0.05, prompt=prompt_tokens, answer=answer)
    part = report.results[0].performance
    explanation = why(replace(part, run=changed(part.run, server_metrics=metrics)))
    assert explanation.cause is cause
    assert "target_qps" not in explanation.option and "max_num_seqs" not in explanation.option
