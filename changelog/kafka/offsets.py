"""The ends of partitions, positions by time, and the log's start, which may be moved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec

from changelog.errors import OffsetOutOfRange, OwnerUnavailable, UnknownTopic
from changelog.kafka.connection import ATTEMPT_S, DEADLINE_S, Connection
from changelog.kafka.topics import Topics, refuse_system
from changelog.records import Isolation, PartitionOffsets, TopicPartition

T = TypeVar("T")

LEVELS = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}


class Offsets:
    """Those of one cluster. Thread-safe."""

    def __init__(self, connection: Connection, topics: Topics) -> None:
        self._connection = connection
        self._topics = topics

    def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        """See Broker.offsets. Of leader epochs only the last is known, of cleaning nothing.

        Nor what was committed behind open transactions: perhaps everything.
        """
        shapes = {tp: self._topics.check(tp) for tp in partitions}
        starts, ends, stable = self._asked(partitions, lambda: self._ends(partitions))
        marks = {tp: max(ends[tp].offset, stable[tp].offset) for tp in partitions}
        return {
            tp: PartitionOffsets(
                starts[tp].offset,
                marks[tp],
                stable[tp].offset,
                shapes[tp].topic_id,
                max(0, ends[tp].leader_epoch or 0),
                committed_end=marks[tp],
            )
            for tp in partitions
        }

    def _asked(self, partitions: Collection[TopicPartition], call: Callable[[], T]) -> T:
        """What `call` gives, once the leaders of these partitions know that they are."""

        def answer() -> T | None:
            try:
                return call()
            except UnknownTopic:
                self._topics.forget({tp.topic for tp in partitions})
                for tp in partitions:
                    self._topics.check(tp)  # raises it again if that is the last word
                return None

        return self._connection.until(answer, "asking for offsets")

    def _ends(self, partitions: Collection[TopicPartition]) -> list[dict[TopicPartition, Any]]:
        """Log starts, high watermarks, last stable offsets."""
        # All asked at once, the start first and the stable end last: they only grow.
        asked = [
            self._ask(partitions, OffsetSpec.earliest(), "read_uncommitted"),
            self._ask(partitions, OffsetSpec.latest(), "read_uncommitted"),
            self._ask(partitions, OffsetSpec.latest(), "read_committed"),
        ]
        return [self._answers(futures, "asking for the ends of") for futures in asked]

    def for_time(
        self, partition: TopicPartition, timestamp: int, isolation: Isolation
    ) -> int | None:
        """See Broker.offset_for_time."""
        self._topics.check(partition)
        spec = OffsetSpec.for_timestamp(max(0, timestamp))
        doing = f"searching {partition} by time"
        found = self._asked(
            [partition],
            lambda: self._answers(self._ask([partition], spec, isolation), doing)[partition],
        )
        return None if found.offset < 0 else int(found.offset)

    def _answers(
        self, futures: Mapping[TopicPartition, Any], doing: str
    ) -> dict[TopicPartition, Any]:
        """By partition. Raises OwnerUnavailable if a leader has not answered: librdkafka does not."""
        found = self._connection.results(futures, doing)
        for tp, answer in found.items():
            if answer.offset == OFFSET_INVALID:
                raise OwnerUnavailable(
                    f"{self._connection.where(f'{doing} {tp}')}: its leader does not answer; check "
                    f"that the brokers run"
                )
        return found

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        """See Broker.delete_records."""
        refuse_system(partition.topic, "delete records of")
        ends = self.of([partition])[partition]
        if before == -1:
            before = ends.high_watermark
        if not 0 <= before <= ends.high_watermark:
            raise OffsetOutOfRange(
                f"{partition}: records below {before} cannot be deleted, the high watermark is "
                f"{ends.high_watermark}"
            )
        if before <= ends.log_start:
            return ends.log_start
        futures = self._connection.admin.delete_records(
            [KafkaPartition(*partition, before)], request_timeout=DEADLINE_S
        )
        deleted = self._connection.results(futures, "deleting records of")
        return int(next(iter(deleted.values())).low_watermark)

    def _ask(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec, isolation: Isolation
    ) -> dict[TopicPartition, Any]:
        if not partitions:
            return {}
        with self._connection.translated("asking for offsets"):
            futures = self._connection.admin.list_offsets(
                {KafkaPartition(*tp): spec for tp in partitions},
                isolation_level=LEVELS[isolation],
                request_timeout=ATTEMPT_S,
            )
        return {TopicPartition(one.topic, one.partition): f for one, f in futures.items()}
