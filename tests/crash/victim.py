"""A process to be killed: it owns a log, sends words into it, and counts them in RocksDB.

It appends the number of each acknowledged word to a file before it sends the next one.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.layout import STATE
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import Append
from strandline.framework.container.folders import StoreFolders
from strandline.statestore.committing import CommittingStore
from strandline.statestore.engines.rocksdb import RocksEngine
from strandline.statestore.spec import StoreSpec
from strandline.statestore.values import Expiry
from tests.crash.oracle import records
from tests.crash.tally import APP, WORDS, Runner
from tests.log.kit import START_MS, columns

KEYS = [f"word-{number}" for number in range(20)]
CHECKPOINT_MS = 20
WAIT_SECONDS = 0.02
STEP_MS = 2
"""Milliseconds between the timestamps of two words: timers fire between the records of a key."""


@dataclass(frozen=True)
class BriskFolders(StoreFolders):
    """Opens stores that checkpoint often, that of the timers too."""

    def open(
        self,
        spec: StoreSpec[Any, Any],
        partition: int,
        lock_timeout: float = 0.0,
        expiry: Expiry | None = None,
        *,
        columns: bool = False,
    ) -> CommittingStore[Any, Any]:
        limits = replace(spec.limits, checkpoint_interval_ms=CHECKPOINT_MS)
        spec = replace(spec, limits=limits)
        return super().open(spec, partition, lock_timeout, expiry, columns=columns)


class Process:
    """A log in a folder, and the task on it."""

    def __init__(self, root: Path, *, background: bool) -> None:
        clock = SystemClock()
        self.owner = Owner(LocalStorage(root), clock=clock, background=background)
        folders = BriskFolders(root / STATE / APP, clock)
        self.runner = Runner(self.owner, clock, folders, checkpoint_ms=CHECKPOINT_MS)
        self.runner.start()

    def words(self) -> list[int]:
        """Return the values of all words in the log."""
        return [
            msgspec.msgpack.decode(record.value)
            for tp in WORDS
            for record in records(self.owner, tp)
        ]

    def close(self) -> None:
        self.runner.abandon()
        self.owner.close()


def live(root: Path, acknowledged: Path, begun: Any, *, ingest: bool) -> None:
    """Run until killed. With `ingest`, RocksDB ingests every checkpoint as a file, however
    small."""
    if ingest:
        assert RocksEngine.__init__.__kwdefaults__ is not None
        RocksEngine.__init__.__kwdefaults__["sst_from"] = 1
    begun.set()
    process = Process(root, background=True)
    threading.Thread(target=_send, args=(process, acknowledged), daemon=True).start()
    while True:
        process.runner.work(WAIT_SECONDS)


def _send(process: Process, acknowledged: Path) -> None:
    """Send words without end."""
    file = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    producer = process.owner.init_producer()
    sequences = dict.fromkeys(WORDS, 0)
    for number in count(max(process.words(), default=0) + 1):
        key = KEYS[number % len(KEYS)]
        tp = WORDS[number % len(WORDS)]
        batch = columns(
            [msgspec.msgpack.encode(number)], key=key.encode(), times=START_MS + STEP_MS * number
        )
        process.owner.append(
            [Append(tp.topic, tp.partition, batch, producer, sequences[tp], transactional=False)]
        )
        sequences[tp] += 1
        os.write(file, b"%d\n" % number)
