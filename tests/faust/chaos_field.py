"""Faust workers on one log, and the writer of their input."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from strandline.changelog.client.producer import Producer
from strandline.changelog.errors import StrandlineError
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from strandline.framework.faust.positions import after_last_record
from tests.chaos.field import wait_for
from tests.chaos.pens import PAUSE_SECONDS, SureWriter
from tests.faust.faust_workers import FaustProcess, free_port, in_folder, page

KEYS = 40
PARTITIONS = 4
AHEAD = 3_000
"""Maximum number of records that wait for the workers before the writer pauses."""
READY = "Worker ready"
"""Text that a worker logs when it begins to handle records."""


class Writer:
    """Appends records with values that are never used twice, until it is stopped."""

    def __init__(self, log: Log, seed: int, must_wait: Callable[[], bool]) -> None:
        self.acknowledged: Counter[int] = Counter()
        self.repeats = 0
        """Number of transactions that were aborted and written again."""
        self._writer = SureWriter(log.broker, "faust-chaos-writer")
        self._chance = random.Random(seed)
        self._must_wait = must_wait
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current transaction is committed."""
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the writer does not come to an end"

    def _write(self) -> None:
        value = 0
        while not self._stop.wait(PAUSE_SECONDS):
            if self._must_wait():
                continue
            values = list(range(value, value + self._chance.choice([1, 5, 20, 60])))
            value += len(values)
            keys = [b"k%d" % self._chance.randrange(KEYS) for _ in values]
            at_ms = int(time.time() * 1000)

            def append(
                producer: Producer,
                keys: list[bytes] = keys,
                values: list[int] = values,
                at_ms: int = at_ms,
            ) -> None:
                contents = [str(value).encode() for value in values]
                producer.append_columns("source", keys, contents, [at_ms] * len(keys))

            while not self._writer.write(append):
                self.repeats += 1
            self.acknowledged.update(values)


class FaustField:
    """Workers in slots, each with a state folder of its own."""

    def __init__(
        self, log: Log, url: str, folder: Path, *, workers: int, seed: int, settings: dict[str, str]
    ) -> None:
        self.log = log
        self.folder = folder
        self.slots: list[FaustProcess] = []
        self.ports: list[int] = []
        self._settings = {"FAUST_BROKER": url, **settings}
        log.create_topic("source", PARTITIONS)
        for slot in range(workers):
            self.ports.append(free_port())
            self.slots.append(self._start(slot))
        self.writer = Writer(log, seed, self.is_far_behind)

    def start(self, slot: int) -> None:
        """Start the worker of a slot again."""
        self.slots[slot] = self._start(slot)

    def _start(self, slot: int) -> FaustProcess:
        settings = {**self._settings, "FAUST_DATA": str(self.state(slot))}
        where = in_folder(self.folder)
        return FaustProcess(
            "sample_chaos", where, self.folder, web=self.ports[slot], bound=3600.0, **settings
        )

    def state(self, slot: int) -> Path:
        """Return the folder of a slot's tables."""
        return self.folder / f"state-{slot}"

    def add(self) -> int:
        """Start one more worker; return its slot."""
        self.ports.append(free_port())
        self.slots.append(self._start(len(self.slots)))
        return len(self.slots) - 1

    def tend(self) -> list[str]:
        """Return the reasons for which workers have ended by themselves."""
        return [
            f"worker {slot} ended with {worker.status}: {worker.text()[-6000:]}"
            for slot, worker in enumerate(self.slots)
            if not worker.is_running
        ]

    # The log --------------------------------------------------------------------------

    def lag(self) -> int:
        """Return the number of records that are not handled yet."""
        infos = {info.name: info.partitions for info in self.log.topics(internal=True)}
        inputs = [
            TopicPartition(name, number)
            for name, count in infos.items()
            if name == "source" or name.endswith("bucket-repartition")
            for number in range(count)
        ]
        committed = self.log.broker.committed("chaos", require_stable=False)
        ends = after_last_record(self.log.broker, inputs)
        return sum(
            max(0, end - (committed[tp].offset if tp in committed else 0))
            for tp, end in ends.items()
        )

    def is_far_behind(self) -> bool:
        """Return True if the writer must wait."""
        try:
            return self.lag() > AHEAD
        except StrandlineError:
            return True

    def is_done(self) -> bool:
        """Return True once all input is handled."""
        with contextlib.suppress(StrandlineError):
            return self.lag() == 0
        return False

    def owner(self) -> int | None:
        """Return the process id of the log's owner; None if it is dead or this process."""
        with contextlib.suppress(OSError):
            found = re.match(r"pid (\d+)", (self.folder / "log" / "lock").read_text())
            if found and int(found[1]) != os.getpid():
                os.kill(int(found[1]), 0)
                return int(found[1])
        return None

    # The end --------------------------------------------------------------------------

    def finish(self, timeout: float) -> list[str]:
        """Stop the writer and wait until all input is handled. Return what was wrong with that."""
        for slot, worker in enumerate(self.slots):
            if not worker.is_running:
                self.start(slot)
        self.writer.stop()
        try:
            wait_for(self.is_done, timeout, "everything to be handled")
        except TimeoutError:
            return [f"{self.lag()} records are not handled after {timeout:.0f} s"]
        return []

    def shown(
        self, expected: Mapping[str, Mapping[str, Any]], timeout: float
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return what the views of all workers show, put together.

        A partition that is just moving is shown by no worker, so they are asked until they show
        what is expected, for at most `timeout` seconds.
        """
        seen = self._shown_now()

        def is_expected() -> bool:
            seen.update(self._shown_now())
            return seen == expected

        with contextlib.suppress(TimeoutError):
            wait_for(is_expected, timeout, "the views")
        return seen

    def _shown_now(self) -> dict[str, dict[str, Any]]:
        every: dict[str, dict[str, Any]] = {"totals": {}, "per_bucket": {}}
        for port in self.ports:
            answer: dict[str, Any] = {}

            def has_answered(port: int = port, answer: dict[str, Any] = answer) -> bool:
                answer.update(page(port, "/tables/") or {})
                return bool(answer)

            wait_for(has_answered, 60, f"the view at port {port}")
            for name, table in answer.items():
                every[name].update(table)
        return every

    def close(self) -> list[str]:
        """Stop the workers. Return what was wrong with that."""
        wrong = []
        for slot, worker in enumerate(self.slots):
            if worker.is_running:
                status = worker.stop()
                unready = status == -signal.SIGTERM and READY not in worker.text()
                if status != 0 and not unready:
                    wrong.append(f"worker {slot} was stopped, and ended with {status}")
        return wrong

    def kill_all(self) -> None:
        """Kill all workers."""
        for worker in self.slots:
            if worker.is_running:
                worker.kill()
