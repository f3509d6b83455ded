"""A log with a manual clock and fixed random numbers, so that its contents are always the same.

Prices change, a few of them often. Profiles are added, change now and then, and are deleted.
Readers of the prices commit their offsets. Everything is measured in the files of the log.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from strandline.changelog.cleaning import CleaningStatus
from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.manifest import STILL_OPEN, Manifest
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.layout import partition_folder
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition

NOW_MS = 1_790_000_000_000
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
VALUE_BYTES = 100

Change = tuple[str, bytes | None]
"""Key and value; None deletes the key."""


@dataclass(frozen=True)
class Piece:
    """A segment."""

    base: int
    end: int
    size: int
    """Bytes; 0 for the active segment."""
    active: bool


@dataclass(frozen=True)
class PartitionSnapshot:
    """A partition at one moment."""

    pieces: list[Piece]
    clean_end: int
    """End (exclusive) of the part in which each key has one record."""
    offsets: list[int]
    """Offsets of the existing records."""
    survivors: frozenset[int]
    """Offsets of the last cleanable record of each key, and of all records in the active segment.
    """


class Shop:
    """The log, open."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(NOW_MS)
        self._storage = LocalStorage(path)
        self._owner = Owner(self._storage, clock=self.clock, durability="os", background=False)
        self._log = Log(self._owner, clock=self.clock)
        self._chance = random.Random(7)

    def create(self, topic: str, **config: str) -> None:
        """Create a compacted topic of one partition; names of settings have _ for dots."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        self._log.create_topic(topic, 1, config={"cleanup.policy": "compact", **named})

    def append(self, topic: str, changes: Iterable[Change]) -> None:
        """Append some changes as one batch."""
        keys, values = zip(*changes, strict=True)
        columns = {
            "timestamp": pa.array([self.clock.now_ms()] * len(keys)),
            "key": pa.array([key.encode() for key in keys]),
            "value": pa.array(values, pa.binary()),
        }
        with self._log.producer() as producer:
            producer.append_batch(topic, 0, pa.record_batch(columns))

    def commit_offset(self, group: str, topic: str) -> None:
        """Commit in a transaction that a group has read everything."""
        place = TopicPartition(topic, 0)
        with self._log.producer(transactional_id=group) as producer, producer.transaction():
            end = self._log.offsets(topic)[0].high_watermark
            producer.send_offsets_to_transaction({place: end}, group)

    def changes(self, keys: int, count: int, *, deleted: float = 0.0) -> list[Change]:
        """Return random changes, unevenly distributed over the keys, some of them deletions."""
        drawn = (min(int(self._chance.paretovariate(0.6)), keys) for _ in range(count))
        return [
            (
                f"item-{key * 7919 % keys:05}",
                None if self._chance.random() < deleted else self._chance.randbytes(VALUE_BYTES),
            )
            for key in drawn
        ]

    def pass_time(self, ms: int) -> None:
        """Advance the clock and run the log's work that is due."""
        self.clock.advance(ms)
        self._owner.tick()

    def clean(self) -> None:
        """Clean all topics now, active segments included."""
        self._owner.clean()

    def status(self, topic: str) -> CleaningStatus:
        """Return the status of cleaning of a topic."""
        (status,) = [one for one in self._owner.cleaning() if one.topic == topic]
        return status

    def topics(self) -> list[str]:
        """Return the names of all topics, internal ones included."""
        return [info.name for info in self._log.topics(internal=True)]

    def bytes_of(self, topic: str) -> int:
        """Return the bytes of the topic's current segment files."""
        where = self._where(topic)
        entries = Manifest.load(self._storage, where).segments
        return sum(self._size(f"{where}/{entry.name.log_file}") for entry in entries)

    def snapshot(self, topic: str) -> PartitionSnapshot:
        """Return the topic's partition as it is."""
        manifest = Manifest.load(self._storage, self._where(topic))
        found = self._records(topic)
        end = manifest.segments[-1].base_offset
        last = {key: offset for offset, key in found if offset < end}
        active = (offset for offset, _ in found if offset >= end)
        pieces = [
            Piece(
                entry.base_offset,
                found[-1][0] + 1 if entry.end_offset == STILL_OPEN else entry.end_offset,
                max(entry.size, 0),
                entry.end_offset == STILL_OPEN,
            )
            for entry in manifest.segments
        ]
        offsets = [offset for offset, _ in found]
        return PartitionSnapshot(
            pieces, manifest.clean_end, offsets, frozenset([*last.values(), *active])
        )

    def close(self) -> None:
        """Close the log."""
        self._owner.close()

    def _records(self, topic: str) -> list[tuple[int, bytes]]:
        table = self._log.read(topic)
        return list(zip(table["offset"].to_pylist(), table["key"].to_pylist(), strict=True))

    def _where(self, topic: str) -> str:
        return partition_folder(self._log.topic(topic).topic_id, 0)

    def _size(self, path: str) -> int:
        file = self._storage.open(path)
        try:
            return file.size()
        finally:
            file.close()
