"""The app in a process of its own: started, watched by what it has committed, killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import changelog
from changelog.broker import Broker
from changelog.embedded.names import CONSUMER_OFFSETS
from changelog.errors import Retriable
from changelog.flight.endpoint import read as read_endpoint
from changelog.records import TopicPartition

COMMAND = [sys.executable, "-m", "framework.cli", "run", "examples.flights.app:app"]
ROOT = Path(__file__).resolve().parents[2]
STALLED = 120.0
"""Seconds without a commit after which something must be wrong."""


class WorkerProcess:
    """`strandline run examples.flights.app:app`, which owns the log while it runs."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [*COMMAND, *options],
            cwd=ROOT,
            env={**os.environ, "STRANDLINE_LOG": str(folder.resolve())},
        )

    def committed(self, group: str, topic: str) -> Iterator[int]:
        """How many records the group has committed, whenever that changes, while it runs.

        Raises RuntimeError when it fails, or nothing is committed for a long time.
        """
        if not self._owns_the_log():
            return
        with changelog.open(str(self._folder), role="attach_or_spawn") as log:
            try:
                yield from self._changes(log.broker, group, topic)
            except Retriable:
                self.wait()  # the owner of the log was the worker, which is gone

    def kill(self) -> None:
        """SIGKILL: it can do nothing about it, and nothing after it."""
        self._process.kill()
        self._process.wait()

    def wait(self) -> None:
        """Return when it has ended. Raises RuntimeError if it failed."""
        status = self._process.wait()
        if status != 0:
            raise RuntimeError(f"the worker ended with status {status}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def _owns_the_log(self) -> bool:
        """Wait until it serves the log; False if it ended before."""
        until = time.monotonic() + STALLED
        while time.monotonic() < until:
            endpoint = read_endpoint(self._folder)
            if endpoint is not None and endpoint.pid == self._process.pid:
                return True
            if self._ended_within(0.01):
                self.wait()
                return False
        raise RuntimeError(f"the worker did not open the log within {STALLED:g} s")

    def _changes(self, broker: Broker, group: str, topic: str) -> Iterator[int]:
        """A commit is a record in the log's own topic of offsets, and a fetch waits for it."""
        offsets = TopicPartition(CONSUMER_OFFSETS, 0)
        position = broker.offsets([offsets])[offsets].last_stable_offset
        last, until = -1, time.monotonic() + STALLED
        while self._process.poll() is None:
            committed = broker.committed(group, require_stable=False)
            now = sum(at.offset for tp, at in committed.items() if tp.topic == topic)
            if now != last:
                last, until = now, time.monotonic() + STALLED
                yield now
            if time.monotonic() > until:
                raise RuntimeError(f"the worker has committed nothing for {STALLED:g} s")
            position = broker.fetch({offsets: position}, timeout=0.5)[offsets].next_offset
        self.wait()

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
