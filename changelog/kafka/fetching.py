"""Reading from positions that the caller names.

A consumer of librdkafka's goes on from where it was, ahead of who asks it. So some are kept
(reader.py), and a fetch takes the one that is at its positions, as the next fetch of the same reader's
is; or another, which is sent there. None is a member of a group.

While records come they are handed out. When none has, it is asked how far there is anything to read:
librdkafka says that it has come to an end only after a wait of the broker's (`fetch.wait.max.ms`), and
says nothing about the last stable offset.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from changelog.errors import OffsetOutOfRange
from changelog.kafka.connection import Connection
from changelog.kafka.offsets import Offsets
from changelog.kafka.reader import Positions, Reader
from changelog.records import (
    Batch,
    Fetched,
    Isolation,
    PartitionOffsets,
    TopicPartition,
)

KEPT = 8
"""Consumers that are kept between fetches."""


class Fetching:
    """The consumers of one cluster. Thread-safe."""

    def __init__(self, connection: Connection, offsets: Offsets) -> None:
        self._connection = connection
        self._offsets = offsets
        self._lock = threading.Lock()
        self._idle: list[Reader] = []
        """The one used last at the end."""

    def fetch(
        self, positions: Positions, max_bytes: int, isolation: Isolation, timeout: float
    ) -> dict[TopicPartition, Fetched]:
        """See Broker.fetch. A batch is a few thousand records at the most, so `max_bytes` is never far."""
        there = self._taken(positions, isolation)
        if there is not None:
            with self._used(there):
                if there.arrived(positions):
                    return _answer(there, positions)
        ends = self._offsets.of(positions)
        for tp, position in positions.items():
            _check_range(tp, position, ends[tp])
        goals = {tp: _end(ends[tp], isolation) for tp in positions}
        ahead = {tp: goal for tp, goal in goals.items() if positions[tp] < goal}
        if not ahead and timeout <= 0:
            return {tp: _fetched([], at, ends[tp], isolation) for tp, at in positions.items()}
        with self._used(self._free(positions, isolation)) as reader:
            reader.go_to(positions, ends)
            reader.read(positions, ahead, timeout)
            return _answer(reader, positions)

    @contextmanager
    def _used(self, reader: Reader) -> Iterator[Reader]:
        """A reader that nobody else uses meanwhile, and that is kept."""
        try:
            yield reader
        except BaseException:
            reader.close()  # what it was doing is not known
            raise
        with self._lock:
            self._idle.append(reader)
            kept = 0 if self._connection.closed else KEPT
            too_many = [self._idle.pop(0) for _ in range(len(self._idle) - kept)]
        for oldest in too_many:
            oldest.close()

    def _taken(self, positions: Positions, isolation: Isolation) -> Reader | None:
        """The reader that is at these positions, if there is one."""
        with self._lock:
            for reader in reversed(self._idle):
                if reader.isolation == isolation and reader.is_at(positions):
                    self._idle.remove(reader)
                    return reader
        return None

    def _free(self, positions: Positions, isolation: Isolation) -> Reader:
        """A reader to be sent to these positions: best the one that is there, else an old one, or a new."""
        reader = self._taken(positions, isolation)
        if reader is None:
            with self._lock:
                same = [one for one in self._idle if one.isolation == isolation]
                if len(self._idle) >= KEPT and same:
                    reader = same[0]
                    self._idle.remove(reader)
        return reader or Reader(self._connection, isolation)

    def close(self) -> None:
        """Close the consumers that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()


def _check_range(tp: TopicPartition, position: int, ends: PartitionOffsets) -> None:
    if not ends.log_start <= position <= ends.high_watermark:
        raise OffsetOutOfRange(
            f"{tp} has offsets {ends.log_start} to {ends.high_watermark}, got {position}; seek to "
            f"the beginning or the end"
        )


def _end(ends: PartitionOffsets, isolation: Isolation) -> int:
    return ends.last_stable_offset if isolation == "read_committed" else ends.high_watermark


def _answer(reader: Reader, positions: Positions) -> dict[TopicPartition, Fetched]:
    answer = {}
    for tp in positions:
        batches, position, ends = reader.handed_out(tp)
        answer[tp] = _fetched(batches, position, ends, reader.isolation)
    return answer


def _fetched(
    batches: list[Batch], position: int, ends: PartitionOffsets, isolation: Isolation
) -> Fetched:
    """With the ends as they were before the fetch, or as far as it has come since."""
    stable = ends.last_stable_offset
    if isolation == "read_committed":
        stable = max(stable, position)
    return Fetched(batches, position, ends.log_start, max(ends.high_watermark, position), stable)
