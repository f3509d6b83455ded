"""Fetches from positions that the caller gives.

A consumer of librdkafka continues from its own position and reads ahead. Therefore some consumers
are kept (reader.py), and a fetch uses the one that is at its positions, which is the case if the
same caller reads on; otherwise a new one. None is a member of a group.

Records that have arrived are returned at once. If there are none, the bounds of the partitions are
queried, because librdkafka reports the end of a partition only after a wait of the broker
(`fetch.wait.max.ms`), and does not report the last stable offset at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from strandline.changelog.errors import OffsetOutOfRange, Retriable, StrandlineError
from strandline.changelog.extents import OffsetSpan
from strandline.changelog.kafka.connection import KafkaConnection, log
from strandline.changelog.kafka.idle_pool import IdlePool
from strandline.changelog.kafka.offsets import KafkaOffsets
from strandline.changelog.kafka.reader import Positions, Reader, TopicIds
from strandline.changelog.records import (
    Batch,
    Fetched,
    Isolation,
    PartitionOffsets,
    TopicPartition,
)

MAX_SEARCHES = 3
"""Number of searches for a time if records are deleted while they are searched."""


class KafkaConsumers:
    """The consumers of one cluster. Thread-safe."""

    def __init__(self, connection: KafkaConnection, offsets: KafkaOffsets) -> None:
        self._connection = connection
        self._offsets = offsets
        self._idle: IdlePool[Reader] = IdlePool(connection)

    def fetch(
        self, positions: Positions, isolation: Isolation, timeout: float
    ) -> dict[TopicPartition, Fetched]:
        """See Broker.fetch. The amount returned is what librdkafka has received so far."""
        topic_ids = {tp: self._offsets.topic_id(tp) for tp in positions}
        with self._reused(positions, isolation, topic_ids) as there:
            if there is not None and there.arrived(positions):
                return _answer(there, positions)
        ends = self._offsets.of(positions, refresh_ids=False)
        topic_ids = {tp: end.topic_id for tp, end in ends.items()}
        for tp, position in positions.items():
            _check_range(tp, position, ends[tp])
        goals = {tp: ends[tp].visible_end(isolation) for tp in positions}
        ahead = {tp: goal for tp, goal in goals.items() if positions[tp] < goal}
        if not ahead and timeout <= 0:
            return {tp: _fetched([], at, ends[tp], isolation) for tp, at in positions.items()}

        def read(reader: Reader) -> dict[TopicPartition, Fetched]:
            reader.note_ends(ends)
            reader.read(positions, ahead, timeout)
            return _answer(reader, positions)

        with self._reused(positions, isolation, topic_ids) as there:
            if there is not None:
                return read(there)
        # A reader of a topic that was created again has records of the old one.
        self._idle.drop(lambda reader: reader.reads_other(topic_ids))
        # A reader at other positions is not moved: a seek takes librdkafka up to a second, and a
        # new consumer only some milliseconds.
        with self._used(Reader(self._connection, positions, topic_ids, isolation)) as new:
            return read(new)

    def offset_for_time(
        self, partition: TopicPartition, timestamp: int, isolation: Isolation
    ) -> int | None:
        """See Broker.offset_for_time.

        The cluster gives a lower bound, from which records are read up to the first of that time.
        Usually that is the first record read. Others are before it if the cluster has found a
        marker or an aborted record.
        """
        left = MAX_SEARCHES
        while True:
            start = self._offsets.bound_for_time(partition, timestamp, isolation)
            if start is None:
                return None
            ends = self._offsets.of([partition], refresh_ids=False)[partition]
            span = OffsetSpan(start, ends.visible_end(isolation))
            try:
                return self._first_since(partition, timestamp, span, ends, isolation)
            except OffsetOutOfRange:  # records were deleted meanwhile
                left -= 1
                if not left:
                    raise

    def _first_since(
        self,
        tp: TopicPartition,
        timestamp: int,
        span: OffsetSpan,
        ends: PartitionOffsets,
        isolation: Isolation,
    ) -> int | None:
        """Return the offset of the first visible record of at least that timestamp in a span."""
        position = span.start
        if position >= span.end:
            return None
        # A reader of its own, which is closed afterwards, because it would go on reading ahead.
        new = Reader(self._connection, {tp: position}, {tp: ends.topic_id}, isolation)
        with closing(new) as reader:
            reader.note_ends({tp: ends})
            while position < span.end:
                reader.read({tp: position}, {tp: span.end}, 0.0)
                batches, position, _ = reader.handed_out(tp)
                for batch in batches:
                    if (found := batch.clip(0, span.end).offset_for_time(timestamp)) is not None:
                        return found
        return None

    def forget(self, topic: str) -> None:
        """Close the readers of a deleted topic, so that their records are not returned."""
        self._idle.drop(lambda reader: reader.reads(topic))

    @contextmanager
    def _reused(
        self, positions: Positions, isolation: Isolation, topic_ids: TopicIds
    ) -> Iterator[Reader | None]:
        """Yield the idle reader at these positions of these topics, or None.

        An error that is not Retriable is suppressed and the reader is closed, because the error
        may be about earlier fetches or a topic deleted since. The caller then uses a new reader.
        """
        there = self._idle.take(
            lambda reader: (
                reader.isolation == isolation
                and reader.is_at(positions)
                and not reader.reads_other(topic_ids)
            )
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
            log.debug("a reader is closed after an error: %s", error)

    @contextmanager
    def _used(self, reader: Reader) -> Iterator[Reader]:
        """Yield a reader that is used exclusively, and keep it afterwards for the next fetch."""
        try:
            yield reader
        except BaseException:
            reader.close()  # its state is unknown
            raise
        self._idle.put(reader)

    def close(self) -> None:
        """Close the idle consumers."""
        self._idle.close()


def _check_range(tp: TopicPartition, position: int, ends: PartitionOffsets) -> None:
    if not ends.log_start <= position <= ends.high_watermark:
        raise OffsetOutOfRange(
            f"{tp} has offsets {ends.log_start} to {ends.high_watermark}, got {position}; seek to "
            f"the beginning or the end"
        )


def _answer(reader: Reader, positions: Positions) -> dict[TopicPartition, Fetched]:
    answer = {}
    for tp in positions:
        batches, position, ends = reader.handed_out(tp)
        answer[tp] = _fetched(batches, position, ends, reader.isolation)
    return answer


def _fetched(
    batches: list[Batch], position: int, ends: PartitionOffsets, isolation: Isolation
) -> Fetched:
    """Return a result with the bounds from before the fetch, raised to the position reached."""
    stable = ends.last_stable_offset
    if isolation == "read_committed":
        stable = max(stable, position)
    highest = max(ends.high_watermark, position)
    return Fetched(batches, position, ends.log_start, highest, stable, topic_id=ends.topic_id)
