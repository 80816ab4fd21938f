"""A simulated PTDaemon: it speaks SPEC's protocol, and measures nothing.

With it the official client and server make a whole session on any machine. All that it says names it SIMULATED: the
reply to `Identify`, the banner, each sample. Nothing changes that, and the official checker refuses its sessions, too
(power_checker.py: version, device number, uncertainty checking).

It is started as PTDaemon is: `-l LOG -p PORT [-c CHANNEL] [-b BOARD] [-n|-g|-y|-U|-D] TYPE DEVICE`.
"""

from __future__ import annotations

import argparse
import math
import socketserver
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cm4vllm.common.clock import present
from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.records.power.samples import SIMULATED, mean_watts, samples_of

VERSION = f"0.0.0-{SIMULATED}-0"
IDENTITY = (
    f"{SIMULATED},1000,1,1,1,1,0,0,1,version={VERSION},OS={SIMULATED},mode=power,1,1,1,0,0,no_cal_date,"
    f"{SIMULATED};{SIMULATED};0;{SIMULATED}"
)
#: The replies that are always the same, by their command.
_FIXED = {"Hello": "Hello, PTDaemon here!", "Identify": IDENTITY, "RR": "Ranges,1,-1.000000,1,-1.000000"}
BANNER = f"{SIMULATED} PTDaemon, version {VERSION}: no analyzer, no measurement; every value is made up"
#: The made-up reading: power in W, and the part of it by which it swings, within the seconds of a swing.
_WATTS, _SWING, _PERIOD_S, _VOLTS, _FACTOR = 200.0, 0.01, 20.0, 230.0, 0.98


class SimulatedAnalyzer:
    """The analyzer behind the protocol: its ranges, its present measurement and the samples that were not yet read."""

    def __init__(self, log: Path) -> None:
        """Take the file that gets a line for each sample, as PTDaemon's log."""
        self._log = log
        self._lock = threading.Lock()
        self._ranges = {"V": "Auto", "A": "Auto"}
        self._lines: list[str] = []
        self._read = 0
        self._stop: threading.Event | None = None
        self._sampler: threading.Thread | None = None

    def reply(self, command: str) -> list[str]:
        """Return the lines with which PTDaemon answers a command."""
        name, *words = command.strip().split(",")
        if name in _FIXED:
            return [_FIXED[name]]
        if name == "SR" and len(words) == 2 and words[0] in self._ranges:
            self._ranges[words[0]] = words[1]
            return [f"Range {words[0]} changed"]
        if name == "Go" and len(words) == 3:
            return [self._go(int(words[0]), words[2])]
        if name == "Stop":
            return [self._end()]
        if name == "RL":
            return self._unread_lines() if not words else ["Invalid number of parameters"]
        return [self._totals(name) if name in ("Watts", "Uncertainty") else "Error: Unknown command"]

    def _go(self, interval_ms: int, mark: str) -> str:
        """Begin a measurement with a sample every `interval_ms`; return PTDaemon's reply."""
        if self._stop is not None:
            return "Error: a measurement is in progress"
        self._lines, self._read, self._stop = [], 0, threading.Event()
        self._sampler = threading.Thread(target=self._take, args=(interval_ms / 1000, mark, self._stop), daemon=True)
        _print_line(f"Go with mark '{mark}'")
        self._sampler.start()
        return f"Starting untimed measurement, maximum 500000 samples at {interval_ms}ms with 0 rampup samples"

    def _take(self, interval_s: float, mark: str, stop: threading.Event) -> None:
        """Add a sample of that mark at each interval, in s, until `stop` is set."""
        begin = time.monotonic()
        due = begin + min(0.1, interval_s)  # as an analyzer that is read at its own time
        while not stop.wait(max(0.0, due - time.monotonic())):
            watts = _WATTS * (1 + _SWING * math.sin(2 * math.pi * (due - begin) / _PERIOD_S))
            amps = watts / _VOLTS / _FACTOR
            line = f"Time,{_now()},Watts,{watts:.6f},Volts,{_VOLTS:.6f},Amps,{amps:.6f},PF,{_FACTOR:.6f}"
            with self._lock:
                self._lines.append(f"{line},{SIMULATED}")
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{line},Mark,{mark},{SIMULATED}\n")
            _print_line(f"{SIMULATED} sample {len(self._lines)} of {mark}: {watts:.6f} W")
            due += interval_s

    def _end(self) -> str:
        """End the measurement; return PTDaemon's reply."""
        if self._stop is None or self._sampler is None:
            return "Error: no measurement to stop"
        self._stop.set()
        self._sampler.join()
        self._stop = None
        _print_line("Completed test")
        return "Stopping untimed measurement"

    def _unread_lines(self) -> list[str]:
        with self._lock:
            lines, self._read = self._lines[self._read :], len(self._lines)
        return [f"Last {len(lines)} samples", *lines]

    def _totals(self, name: str) -> str:
        """Return PTDaemon's reply with the totals of a quantity (`Watts`, `Uncertainty`) over all samples."""
        with self._lock:
            samples = samples_of("\n".join(self._lines)).samples
        count = len(samples)
        if name == "Uncertainty" and "Auto" in self._ranges.values():
            return f"Uncertainty,-1.0,10000000.000000,0.000000,{count},0,0,{count}"
        if name == "Uncertainty":
            return f"Uncertainty,{','.join([f'{0.003:.6f}'] * 3)},{count},0,{count},0"
        watts = [sample.watts for sample in samples]
        low, high = min(watts, default=-1.0), max(watts, default=-1.0)
        return f"Watts,{mean_watts(samples) or -1.0:.6f},{low:.6f},{high:.6f},{count},0,{count}"

    def close(self) -> None:
        """End a measurement whose client has gone."""
        if self._stop is not None:
            self._end()


class _Handler(socketserver.StreamRequestHandler):
    """One connection of the power server; commands end with a line feed, replies with carriage return and line feed."""

    analyzer: SimulatedAnalyzer

    def handle(self) -> None:
        """Answer the commands of one connection, line by line, until it is closed."""
        _print_line(f"Accepted connection from {self.client_address[0]}:{self.client_address[1]}")
        for data in self.rfile:
            for line in self.analyzer.reply(data.decode(errors="replace")):
                self.wfile.write(f"{line}\r\n".encode())
                _print_line(f"Response to client sent: {line}")
        self.analyzer.close()
        _print_line("Connection is down.")


def _now() -> str:
    return present().strftime("%m-%d-%Y %H:%M:%S.%f")[:-3]


def _print_line(text: str) -> None:
    print(f"{_now()}: {text}", flush=True)


def main(argv: Sequence[str]) -> None:
    """Serve on the port until the power server ends this process."""
    parser = argparse.ArgumentParser(description=BANNER)
    parser.add_argument("-l", dest="log", type=Path, required=True, help="file of the samples")
    parser.add_argument("-p", dest="port", type=int, required=True, help="port on the loopback device")
    parser.add_argument("-c", dest="channel", help="accepted, and not used")
    parser.add_argument("-b", dest="board", help="accepted, and not used")
    for flag in ("-n", "-g", "-y", "-U", "-D"):
        parser.add_argument(flag, action="store_true", help="accepted, and not used")
    parser.add_argument("type", help="accepted, and not used")
    parser.add_argument("device", nargs="?", help="accepted, and not used")
    given = parser.parse_args(argv)
    die_with_parent()
    print(BANNER, flush=True)
    _Handler.analyzer = SimulatedAnalyzer(given.log)
    socketserver.TCPServer.allow_reuse_address = True
    with socketserver.TCPServer(("127.0.0.1", given.port), _Handler) as daemon:
        _print_line(f"Uncertainty checking for {SIMULATED} is activated")
        _print_line("Waiting for a connection...")
        daemon.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
