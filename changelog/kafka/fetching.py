"""Reading from positions that the caller names.

A consumer of librdkafka's goes on from where it was, ahead of who asks it. So some are kept
(reader.py), and a fetch takes the one that is at its positions, as the next fetch of the same reader's
is; or a new one. None is a member of a group.

While records come they are handed out. When none has, it is asked how far there is anything to read:
librdkafka says that it has come to an end only after a wait of the broker's (`fetch.wait.max.ms`), and
says nothing about the last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strandline.changelog.errors import OffsetOutOfRange, Retriable, StrandlineError
from strandline.changelog.kafka.connection import KafkaConnection, log
from strandline.changelog.kafka.idle_pool import IdlePool
from strandline.changelog.kafka.offsets import KafkaOffsets
from strandline.changelog.kafka.reader import Positions, Reader
from strandline.changelog.records import (
    Batch,
    Fetched,
    Isolation,
    PartitionOffsets,
    TopicPartition,
)


class KafkaConsumers:
    """The consumers of one cluster. Thread-safe."""

    def __init__(self, connection: KafkaConnection, offsets: KafkaOffsets) -> None:
        self._connection = connection
        self._offsets = offsets
        self._idle: IdlePool[Reader] = IdlePool(connection)

    def fetch(
        self, positions: Positions, isolation: Isolation, timeout: float
    ) -> dict[TopicPartition, Fetched]:
        """See Broker.fetch. How much it gives is librdkafka's to say: what has come by then."""
        with self._reused(positions, isolation) as there:
            if there is not None and there.arrived(positions):
                return _answer(there, positions)
        ends = self._offsets.of(positions)
        for tp, position in positions.items():
            _check_range(tp, position, ends[tp])
        goals = {tp: _end(ends[tp], isolation) for tp in positions}
        ahead = {tp: goal for tp, goal in goals.items() if positions[tp] < goal}
        if not ahead and timeout <= 0:
            return {tp: _fetched([], at, ends[tp], isolation) for tp, at in positions.items()}

        def read(reader: Reader) -> dict[TopicPartition, Fetched]:
            reader.note_ends(ends)
            reader.read(positions, ahead, timeout)
            return _answer(reader, positions)

        with self._reused(positions, isolation) as there:
            if there is not None:
                return read(there)
        # One that is elsewhere is not sent here: librdkafka takes up to a second for that, and some
        # milliseconds for a new one.
        with self._used(Reader(self._connection, positions, isolation)) as new:
            return read(new)

    def forget(self, topic: str) -> None:
        """A topic has been deleted: nobody gets what is left of it."""
        self._idle.drop(lambda reader: reader.reads(topic))

    @contextmanager
    def _reused(self, positions: Positions, isolation: Isolation) -> Iterator[Reader | None]:
        """The reader that is at these positions, if there is one.

        If it refuses something, that may be about what others had asked it for, or about a topic that
        was deleted since: a new one will tell.
        """
        there = self._idle.take(
            lambda reader: reader.isolation == isolation and reader.is_at(positions)
        )
        if there is None:
            yield None
            return
        try:
            with self._used(there):
                yield there
        except Retriable:
            raise
        except StrandlineError as error:
            log.debug("a reader is given up: %s", error)

    @contextmanager
    def _used(self, reader: Reader) -> Iterator[Reader]:
        """A reader that nobody else uses meanwhile, and that is kept."""
        try:
            yield reader
        except BaseException:
            reader.close()  # what it was doing is not known
            raise
        self._idle.put(reader)

    def close(self) -> None:
        """Close the consumers that are not in use."""
        self._idle.close()


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
