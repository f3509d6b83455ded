"""The log, which this process owns; the thread that produces flights; and the workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO, Self

import polars as pl

from examples.flights.app import app, flights
from examples.flights.data import read_flights
from examples.flights.worker import ROOT
from examples.flights.wow.witness import Witness
from strandline import changelog

FLIGHTS_PER_SECOND = 3_000
"""Flights produced per second."""
TICK_SECONDS = 0.1
NEWS_LINES = 6
"""Number of news lines that are kept."""
BACK = re.compile(r"has (\d+) store partitions back: (\d+) records replayed in ([\d.]+) s")
"""Message of a worker that has restored its stores."""


class ShowWorker:
    """A worker's process, and a thread that reads its messages."""

    def __init__(self, number: int, folder: Path, guarantee: str, news: deque[str]) -> None:
        self.number = number
        self.frozen = False
        self._news = news
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.flights.wow.worker", str(folder), guarantee],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, signal_number: int) -> None:
        if self.is_running:
            self._process.send_signal(signal_number)

    def end(self) -> None:
        """End the process in an orderly way; kill it after 10 seconds."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            if "was fenced" in line:
                self._news.append(f"worker {self.number}: fenced, joins again")
            elif found := BACK.search(line):
                stores, records, seconds = found.groups()
                self._news.append(
                    f"worker {self.number}: {stores} store partitions restored,"
                    f" {int(records):,} records replayed in {float(seconds) * 1000:.0f} ms"
                )


class ShowStage:
    """Everything that runs, within a `with` block."""

    def __init__(self, folder: Path) -> None:
        self.news: deque[str] = deque(maxlen=NEWS_LINES)
        self.guarantee = "exactly_once"
        self.produced = 0
        self._folder = folder
        self._flights: pl.DataFrame = read_flights()
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self.log = changelog.open(self._folder, role="own")
        app.log = self.log.broker
        app.prepare()
        self.witness = Witness(self.log.broker)
        self.workers = [self._worker(number) for number in range(2)]
        self._pump = threading.Thread(target=self._produce, daemon=True)
        self._pump.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._pump.join(10)
        for worker in self.workers:
            worker.end()
        self.witness.stop()
        self.log.close()

    def members(self) -> dict[int, int]:
        """Return the number of partitions of each worker, by process id."""
        info = self.log.broker.describe_group(app.name)
        return {int(m.client.rpartition("-")[2]): len(m.held) for m in info.members}

    def stop_producing(self) -> None:
        """Stop producing flights."""
        self._stop.set()

    # Actions of the viewer ------------------------------------------------------------

    def kill(self) -> None:
        """Kill a worker with kill -9; with at_least_once at the worst moment."""
        held = self.members()
        worker = next((w for w in self.workers if held.get(w.pid) and not w.frozen), None)
        if worker is not None:
            self.news.append(f"worker {worker.number}: kill -9 (pid {worker.pid})")
            worker.send(signal.SIGUSR1)

    def freeze_or_thaw(self) -> None:
        """Stop a worker with SIGSTOP, or continue a stopped one with SIGCONT."""
        frozen = next((w for w in self.workers if w.frozen), None)
        if frozen is not None:
            frozen.frozen = False
            frozen.send(signal.SIGCONT)
            self.news.append(f"worker {frozen.number}: thawed")
            return
        held = self.members()
        worker = next((w for w in reversed(self.workers) if held.get(w.pid)), None)
        if worker is not None:
            worker.frozen = True
            worker.send(signal.SIGSTOP)
            self.news.append(f"worker {worker.number}: frozen; its session is 2 s long")

    def switch(self) -> None:
        """Switch to at_least_once and back; the workers end in order and are started again."""
        other = "at_least_once" if self.guarantee == "exactly_once" else "exactly_once"
        self.guarantee = other
        self.news.append(f"workers restart with {other}")
        for worker in self.workers:
            worker.frozen = False
            worker.end()

    def tend(self) -> None:
        """Start workers again that have ended."""
        for at, worker in enumerate(self.workers):
            if not worker.is_running:
                self.workers[at] = self._worker(worker.number)

    def _worker(self, number: int) -> ShowWorker:
        return ShowWorker(number, self._folder, self.guarantee, self.news)

    def _produce(self) -> None:
        """Produce flights at an even rate, repeating the year."""
        size, at = round(FLIGHTS_PER_SECOND * TICK_SECONDS), 0
        while not self._stop.wait(TICK_SECONDS):
            piece = self._flights.slice(at, size)
            self.produced += flights.append(piece)
            at = (at + size) % self._flights.height
