"""A program with the command line, the requests and the files of the reference client, which starts at once.

`small_client.py -m inference_endpoint.main benchmark from-config -c FILE --mode perf|both`, as endpoints/client.py
starts the real one. It has its habits too: progress on its standard output, a folder in /dev/shm while it runs, and
after SIGINT the exit status 0 with files that call themselves complete, or 1 where it had an accuracy run to score.
"""

import http.client
import json
import os
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
STOPPED = threading.Event()
signal.signal(signal.SIGINT, lambda *_: STOPPED.set())


class Run:
    """The requests of one run: `total` from the rows in their order, `concurrency` in flight."""

    def __init__(self, config, rows, total, concurrency, events):
        self._config, self._rows, self._total, self._events = config, rows, total, events
        self._lock, self._next, self.completed = threading.Lock(), 0, 0
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
        while not STOPPED.is_set():
            with self._lock:
                if (number := self._next) >= self._total:
                    return
                self._next += 1
                self._note("sample.issued", number)
            model = self._config["model_params"]
            prompt = self._rows[number % len(self._rows)]["input_tokens"]
            body = {"model": model["name"], "prompt": prompt, "max_tokens": 8, "stream": True}
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse().read()
            except OSError:
                return
            with self._lock:
                self._note("sample.recv_first", number)
                self._note("sample.complete", number, ["TextModelOutput", ["a", f" {len(answer)}"], None])
                self.completed += 1
                print(f" {self.completed}/{self._total} [", end="", flush=True)

    def _note(self, kind, number, data=None):
        event = {"event_type": kind, "timestamp_ns": time.monotonic_ns(), "sample_uuid": str(number), "data": data}
        self._events.write(json.dumps(event) + "\n")


def main():
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
        for kind in ("session.start_performance_tracking", "session.stop_performance_tracking"):
            if "stop" in kind:
                run = Run(config, rows, total, concurrency, events)
                run.make()
            events.write(json.dumps({"event_type": kind, "timestamp_ns": time.monotonic_ns()}) + "\n")
    duration = time.monotonic_ns() - began
    counts = {"issued": run.issued, "completed": run.completed, "failed": run.issued - run.completed}
    figures = {
        "git_sha": os.environ["SMALL_COMMIT"],
        "duration_ns": duration,
        "state": "complete",
        "complete": True,
        "tps": 8e9 * run.completed / duration,
    }
    summary = {f"n_samples_{name}": count for name, count in counts.items()} | figures
    (folder / "performance" / "result_summary.json").write_text(json.dumps(summary))
    if MODE == "both":
        (folder / "accuracy").mkdir()
        entry = {"dataset_name": dataset["name"], "dataset_type": "accuracy", "complete": not STOPPED.is_set()}
        (folder / "accuracy" / "accuracy_results.json").write_text(json.dumps({"accuracy_scores": [entry]}))
    held.close()
    shutil.rmtree(shared)
    if MODE == "both" and STOPPED.is_set():
        sys.exit(1)  # it has nothing to score


main()
