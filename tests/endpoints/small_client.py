"""A program with the command line, the requests and the files of the reference client, which starts at once.

`small_client.py -m inference_endpoint.main benchmark from-config -c FILE --mode perf|both`, as endpoints/client.py
starts the real one. It has its habits too: progress on its standard output, a folder in /dev/shm while it runs, failed
requests that count as completed, with an error and no answer in the event log, and after SIGINT the exit status 0 with
files that call themselves complete, or 1 where it has an accuracy run to score and no answer to it. With
SMALL_INTERRUPTED=FILE it gets a SIGINT after the first answer of an accuracy run, once. With SMALL_HELD=FOLDER a run of
which FOLDER has a file stays at its first answer, until a signal ends it. SMALL_FIGURES=JSON takes the place of figures
in its summary. With SMALL_FAILS=TEXT it prints the text and ends with 1 before its run.
"""

import http.client
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import yaml

CONFIG, MODE = sys.argv[sys.argv.index("-c") + 1], sys.argv[-1]
TRACKING, PERFORMANCE = "session", "performance_tracking"
STOPPED = threading.Event()
signal.signal(signal.SIGINT, lambda *_: STOPPED.set())


class Run:
    """The requests of a phase: `total` of the rows in their order, `concurrency` in flight, after `before` others."""

    def __init__(self, config, rows, total, concurrency, events, before=0):
        self._config, self._rows, self._total, self._events, self._before = config, rows, total, events, before
        self._lock, self._next, self.completed, self.failed = threading.Lock(), 0, 0, 0
        self._threads = [threading.Thread(target=self._work) for _ in range(min(concurrency or 8, total))]

    @property
    def issued(self):
        return self._next

    def make(self):
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _work(self):
        url = urlsplit(self._config["endpoint_config"]["endpoints"][0])
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=20)
        key = os.path.expandvars(self._config["endpoint_config"].get("api_key", ""))
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        while True:
            with self._lock:
                if STOPPED.is_set() or (number := self._next) >= self._total:
                    return
                self._next += 1
                self._note("sample.issued", self._before + number)
            model = self._config["model_params"]
            prompt = self._rows[number % len(self._rows)]["input_tokens"]
            body = {"model": model["name"], "prompt": prompt, "max_tokens": 8, "stream": True}
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), headers)
                response = connection.getresponse()
                answer, status = response.read(), response.status
            except OSError:
                return
            except http.client.HTTPException as error:
                answer, status = repr(error).encode(), 0
            with self._lock:
                if status == 200:
                    self._note("sample.recv_first", self._before + number)
                    words = ["TextModelOutput", ["a", f" {len(answer)}"], None]
                    reason = re.search(rb'"finish_reason": ?"(\w+)"', answer)
                    more = {"finish_reason": reason[1].decode()} if reason else {}
                else:
                    connection.close()
                    error = ["ErrorData", "error", f"HTTP {status}: {answer.decode()}"]
                    self._note("error.generic", self._before + number, error)
                    self.failed += 1
                    words, more = None, {}
                self._note("sample.complete", self._before + number, words, **more)
                self.completed += 1
                held = is_held(self._config["report_dir"])  # before the answer is seen, and the file removed
                print(f" {self._before + self.completed}/{self._before + self._total} [", end="", flush=True)
                if self._before:
                    interrupt_once()
                if held:
                    STOPPED.wait()

    def _note(self, kind, number, data=None, **more):
        event = {"event_type": kind, "timestamp_ns": time.monotonic_ns(), "sample_uuid": str(number), "data": data}
        event |= more
        self._events.write(json.dumps(event) + "\n")


def is_held(name):
    return bool(folder := os.environ.get("SMALL_HELD")) and Path(folder, name).exists()


def interrupt_once():
    """Get the SIGINT, once; the caller holds the lock, so that no sample is issued before it has its effect."""
    if (marker := os.environ.get("SMALL_INTERRUPTED")) and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGINT)
        STOPPED.wait()


def main():
    if text := os.environ.get("SMALL_FAILS"):
        sys.exit(text)
    config = yaml.safe_load(Path(CONFIG).read_text())
    folder = Path(config["report_dir"])
    shared = Path(tempfile.mkdtemp(prefix="benchmark_small_", dir="/dev/shm"))
    held = (shared / "held").open("w")
    (folder / "performance").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    dataset = config["datasets"][0]
    rows = [json.loads(line) for line in Path(dataset["path"]).read_text().splitlines()]
    settings = config["settings"]
    total, concurrency = settings["runtime"]["n_samples_to_issue"], settings["load_pattern"].get("target_concurrency")
    began = time.monotonic_ns()
    with (folder / "events.jsonl").open("w") as events:
        events.write(json.dumps({"event_type": f"{TRACKING}.start_{PERFORMANCE}", "timestamp_ns": began}) + "\n")
        run = Run(config, rows, total, concurrency, events)
        run.make()
        ended = time.monotonic_ns()
        events.write(json.dumps({"event_type": f"{TRACKING}.stop_{PERFORMANCE}", "timestamp_ns": ended}) + "\n")
        # Half of the samples in flight at most: an interrupt after the first answer leaves others that are not issued.
        scored = Run(config, rows, len(rows), min(concurrency or 8, len(rows) // 2), events, before=total)
        if MODE == "both":
            scored.make()
    counts = {"issued": run.issued, "completed": run.completed, "failed": run.issued - run.completed + run.failed}
    figures = {
        "git_sha": os.environ["SMALL_COMMIT"],
        "duration_ns": ended - began,
        "state": "complete",
        "complete": True,
        "tps": 8e9 * run.completed / (ended - began),
    }
    summary = {f"n_samples_{name}": count for name, count in counts.items()} | figures
    summary |= json.loads(os.environ.get("SMALL_FIGURES", "{}"))
    (folder / "performance" / "result_summary.json").write_text(json.dumps(summary))
    names = [entry["name"] for entry in config["datasets"]]
    samples = map(str, range(total, total + scored.issued))
    issued = {name: dict.fromkeys(samples, 0) for name in names[1:]}
    (folder / "sample_idx_map.json").write_text(json.dumps(issued))
    held.close()
    shutil.rmtree(shared)
    if MODE == "both":
        if not scored.completed:
            sys.exit(1)  # it has nothing to score
        (folder / "accuracy").mkdir()
        missing = {"issued": scored.issued, "empty": scored.failed, "missing": scored.issued - scored.completed}
        entry = {"dataset_name": names[1], "dataset_type": "accuracy", "complete": True, "response_counts": missing}
        (folder / "accuracy" / "accuracy_results.json").write_text(json.dumps({"accuracy_scores": [entry]}))


main()
