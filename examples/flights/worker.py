"""The app in a process of its own: started, observed by its commits, killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from strandline import changelog
from strandline.changelog.broker import Broker
from strandline.changelog.errors import Retriable
from strandline.changelog.flight.endpoint import read as read_endpoint
from strandline.changelog.layout import CONSUMER_OFFSETS
from strandline.changelog.records import TopicPartition

COMMAND = [sys.executable, "-m", "strandline", "run"]
ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.2
"""Seconds between two reads of committed offsets where a commit cannot be waited for."""
STALLED_S = 120.0
"""Seconds without a commit after which the worker is considered broken."""


class RunProcess:
    """Process of `strandline run`. It owns the log if that is a folder without an owner."""

    def __init__(self, log: str, *options: str, app: str = "examples.flights.app:app") -> None:
        self._log = log
        self._in_folder = "://" not in log
        named = str(Path(log).resolve()) if self._in_folder else log
        self._process = subprocess.Popen(
            [*COMMAND, app, *options], cwd=ROOT, env={**os.environ, "STRANDLINE_LOG": named}
        )

    def committed(self, group: str, topic: str) -> Iterator[int]:
        """Yield the number of records that the group has committed, at each change, while it runs.

        Raises RuntimeError if the worker fails, or commits nothing for a long time.
        """
        if self._in_folder and not self._owns_the_log():
            return
        with changelog.open(self._log, role="attach_or_spawn") as log:
            try:
                yield from self._changes(log.broker, group, topic)
            except Retriable:
                self.wait()  # the worker owned the log, and has ended

    def kill(self) -> None:
        """Kill the process with SIGKILL, which it cannot handle."""
        self._process.kill()
        self._process.wait()

    def is_running(self, wait_s: float) -> bool:
        """Wait for so many seconds; return False as soon as the process has ended."""
        return not self._ended_within(wait_s)

    def wait(self) -> None:
        """Wait until the process has ended. Raise RuntimeError if it failed."""
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
        """Wait until the process serves the log; return False if it ended before."""
        until = time.monotonic() + STALLED_S
        while time.monotonic() < until:
            endpoint = read_endpoint(Path(self._log))
            if endpoint is not None and endpoint.pid == self._process.pid:
                return True
            if self._ended_within(0.01):
                self.wait()
                return False
        raise RuntimeError(f"the worker did not open the log within {STALLED_S:g} s")

    def _changes(self, broker: Broker, group: str, topic: str) -> Iterator[int]:
        news = self._news(broker)
        last, until = -1, time.monotonic() + STALLED_S
        while self._process.poll() is None:
            committed = broker.committed(group, require_stable=False)
            now = sum(at.offset for tp, at in committed.items() if tp.topic == topic)
            if now != last:
                last, until = now, time.monotonic() + STALLED_S
                yield now
            if time.monotonic() > until:
                raise RuntimeError(f"the worker has committed nothing for {STALLED_S:g} s")
            next(news)
        self.wait()

    def _news(self, broker: Broker) -> Iterator[None]:
        """Yield when a commit may have happened, or after a while.

        In a folder, a commit is a record in the internal topic of offsets, and a fetch waits for
        it. Kafka's brokers do not expose theirs.
        """
        offsets = TopicPartition(CONSUMER_OFFSETS, 0)
        position = broker.offsets([offsets])[offsets].last_stable_offset if self._in_folder else 0
        while True:
            if self._in_folder:
                position = broker.fetch({offsets: position}, timeout=0.5)[offsets].next_offset
            else:
                self._ended_within(POLL_S)
            yield

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
