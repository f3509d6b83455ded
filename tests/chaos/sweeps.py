"""Observation of the cleaner during a run: its passes, their size, and whether one is under way.

The settings let every partition of a compacted topic be cleaned every few seconds, and remove
tombstones soon after. Bytes per second are bounded, so that a pass can be caught in the middle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

from strandline.changelog.broker import Broker
from strandline.changelog.cleaning import CleanedPartition
from strandline.changelog.embedded.manifest import Manifest
from strandline.changelog.errors import StrandlineError
from strandline.changelog.layout import partition_folder, segment_of
from strandline.changelog.local_storage import LocalStorage

LOOK_SECONDS = 0.1
LOG_SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.io.max.bytes.per.second": str(16 << 20),
    "log.cleaner.threads": "2",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.cleaner.delete.retention.ms": "1000",
    "log.segment.delete.delay.ms": "2000",
}
TOPIC_SETTINGS = {"segment.bytes": str(64 << 10), "segment.ms": "1000"}
"""Settings of compacted topics."""


class Sweeps:
    """Looks at the cleaner, on a thread of its own, until it is stopped."""

    def __init__(self, broker: Broker, log: Path) -> None:
        self._broker = broker
        self._storage = LocalStorage(log)
        self._passes: dict[tuple[str, int, int], CleanedPartition] = {}
        """Passes seen. Of several passes between two looks only the last is seen."""
        broker.alter_config(LOG_SETTINGS)
        compacted = [topic for topic in broker.topics() if topic.effective.compact]
        for topic in compacted:
            broker.alter_topic(topic.name, config=TOPIC_SETTINGS)
        self._folders = [
            partition_folder(topic.topic_id, number)
            for topic in compacted
            for number in range(topic.partitions)
        ]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    @property
    def passes(self) -> int:
        return len(self._passes)

    @property
    def tombstones(self) -> int:
        """Number of tombstones removed."""
        return sum(done.tombstones for done in self._passes.values())

    @property
    def removed(self) -> int:
        """Number of records removed, tombstones included."""
        return sum(done.read - done.kept for done in self._passes.values())

    def failing(self) -> list[str]:
        """Return the partitions whose last pass failed, with the reasons."""
        return [
            f"cleaning {status.topic}-{status.partition}: {status.reason}"
            for status in self._broker.cleaning()
            if status.failures
        ]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def catch(self, pid: int, tries: int) -> bool:
        """Stop the owner up to `tries` times until a pass is half done. If one is, leave it
        stopped."""
        pause = threading.Event()
        for _ in range(tries):
            os.kill(pid, signal.SIGSTOP)
            while not _stands(pid):
                pause.wait(0.001)
            if any(self._is_half_done(folder) for folder in self._folders):
                return True
            os.kill(pid, signal.SIGCONT)
            pause.wait(0.01)
        return False

    def _is_half_done(self, folder: str) -> bool:
        """Return True if a pass has written files that are not in the log yet, or not all of
        them."""
        try:
            manifest = Manifest.load(self._storage, folder)
        except FileNotFoundError:
            return False
        if manifest.superseding_end > manifest.clean_end:
            return True
        listed = {entry.name for entry in manifest.segments}
        active = manifest.segments[-1].base_offset if manifest.segments else 0
        newest = max((name.generation for name in listed), default=0)
        found = map(segment_of, self._storage.list_dir(folder))
        return any(
            name is not None
            and name not in listed
            and name.generation > newest
            and name.base_offset < active
            for name in found
        )

    def _look(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            with contextlib.suppress(StrandlineError):  # no owner for a moment
                for status in self._broker.cleaning():
                    if (done := status.last) is not None:
                        self._passes[status.topic, status.partition, done.started_ms] = done


def _stands(pid: int) -> bool:
    """Return True if a process is stopped or gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "TtZX"
