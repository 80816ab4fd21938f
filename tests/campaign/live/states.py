"""States of a job as they were recorded or could be, for what shows them."""

from msgspec.structs import replace

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.campaign.ledger import State
from cm4vllm.campaign.live.status import JobState, StatusRecord, StepStatus
from cm4vllm.endpoints.records import CurveStatus, MeasuredPoint
from cm4vllm.loadgen.process.messages import ClientStatus, LatencyStatus, RunStatus, ServerStatus, TimeLeft
from cm4vllm.records.searches.rate_search import SearchStatus, TriedRate, Verdict


def step(name, state, took_s=None, **fields):
    return StepStatus(name=name, state=State(state), took_s=took_s, **fields)


DONE = {"checker source": 1.2, "model": 45.0, "dataset": 2.0, "server": 31.0, "system": 0.4, "Offline accuracy": 72.3}
STEPS = (
    step("LoadGen", "kept", 0.1),
    *(step(name, "done", took_s) for name, took_s in DONE.items()),
    step("Offline accuracy: scores", "done", 4.4),
    step("Offline rate", "left out", 0.0, why="it is run only if there is no earlier result"),
    step("Server performance", "running", 247.0),
    step("Server accuracy", "planned", expected_s=80.0),
    step("Server accuracy: scores", "planned"),
    step("submission", "planned", expected_s=3.0),
    *(step(name, "planned") for name in ("truncation", "checkers")),
)

LATENCIES = (
    LatencyStatus(
        name="TTFT", queries=12_340, p50_ms=61.2, p99_ms=812.5, limit_ms=2000.0, over=3, missing=0, p99_at_most_ms=903.1
    ),
    LatencyStatus(name="TPOT", queries=12_340, p50_ms=31.0, p99_ms=104.5, limit_ms=100.0, over=180, missing=5660),
    LatencyStatus(name="answer", queries=12_340, p50_ms=4020.0, p99_ms=6100.0),
)

FIRST = {"tokens_per_second": 504.9, "tokens_per_second_per_user": 462.2, "steady_state": "insufficient_duration"}
SECOND = {"tokens_per_second": 1412.0, "tokens_per_second_per_user": None, "steady_state": ""}
CURVE = CurveStatus(
    points=(MeasuredPoint(number=1, concurrency=1, **FIRST), MeasuredPoint(number=2, concurrency=3, **SECOND)),
    number=3,
    count=7,
    concurrency=9,
    foreseen_s=(30.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0),
    done=120,
    total=480,
    elapsed_s=12.5,
)

SERVER_RUN = RunStatus(
    title="Server performance",
    elapsed_s=247.0,
    done=12_340,
    total=30_012,
    in_flight=214,
    tokens=1_579_520,
    samples_per_second=50.1,
    tokens_per_second=6412.8,
    left=TimeLeft(seconds=357.0, low=353.0, high=359.1),
    latencies=LATENCIES,
    server=ServerStatus(running=198, waiting=12, kv_cache_usage=0.873, preemptions=4, cached_prompt_tokens=0),
    client=ClientStatus(workers=1, capacity_qps=1310.0, headroom=26.2),
)

ACCURACY_RUN = replace(
    SERVER_RUN,
    title="Offline accuracy",
    latencies=(),
    left=TimeLeft(seconds=167.4, low=150.2, high=190.0),
    client=ClientStatus(workers=1, capacity_qps=60.0, headroom=1.2),
)

SEARCH = SearchStatus(
    scenario="Server",
    number=5,
    rate=285.4,
    planned_s=75.0,
    full_length=False,
    passing=271.0,
    failing=301.2,
    spent_s=214.0,
    probes=(TriedRate(rate=301.2, verdict=Verdict.FAILS, full_length=False),),
)


def status(**fields) -> StatusRecord:
    """A job in the middle of its Server run, or what the fields say."""
    shown = {
        "title": "llama3.1-8b v6.1, Offline, Server, open",
        "notices": (REHEARSAL_NOTICE,),
        "state": JobState.RUNNING,
        "pid": 4711,
        "started_at": "2026-11-23T04:00:00+00:00",
        "updated_at": "2026-11-23T04:06:45+00:00",
        "elapsed_s": 405.0,
        "steps": STEPS,
        "doing": "Server performance run",
        "progress": "12,340 samples",
        "run": SERVER_RUN,
        "left": TimeLeft(seconds=440.0, low=436.0, high=442.1),
        "left_is_least": True,
        "warnings": ("this machine: 31% of the processors are in use, most of it a compiler",),
    }
    return StatusRecord(**{**shown, **fields})
