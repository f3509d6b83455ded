"""Bounds of partitions, offsets by time, and deletion of records."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END
from confluent_kafka import TopicPartition as KafkaPartition

from strandline.changelog.errors import OffsetOutOfRange, UnknownPartition, UnknownTopic
from strandline.changelog.kafka.connection import ATTEMPT_S, DEADLINE_S, KafkaConnection
from strandline.changelog.kafka.metadata_consumer import MetadataConsumers
from strandline.changelog.kafka.topics import KafkaTopics, refuse_system
from strandline.changelog.records import Isolation, PartitionOffsets, TopicPartition

T = TypeVar("T")

Answers = dict[TopicPartition, KafkaPartition]


class KafkaOffsets:
    """The offsets of one cluster's partitions. Thread-safe."""

    def __init__(
        self,
        connection: KafkaConnection,
        topics: KafkaTopics,
        metadata_consumers: MetadataConsumers,
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._metadata_consumers = metadata_consumers

    def topic_id(self, partition: TopicPartition) -> str:
        """Return the id of a partition's topic, some seconds old. Raises UnknownTopic."""
        return self._topics.check(partition).topic_id

    def of(
        self, partitions: Collection[TopicPartition], *, refresh_ids: bool = True
    ) -> dict[TopicPartition, PartitionOffsets]:
        """See Broker.offsets.

        The cluster is asked for the ids of the topics as well. Without `refresh_ids`, ids that
        are some seconds old are used.

        Kafka reports only the last leader epoch, and nothing about cleaning. It does not report
        which transactions were committed after the start of an open one, so `committed_end` is
        the high watermark.
        """
        if refresh_ids:
            self._topics.refresh({tp.topic for tp in partitions})
        shapes = {tp: self._topics.check(tp) for tp in partitions}
        starts, ends, stable = self._with_leaders(partitions, lambda: self._ends(partitions))
        marks = {tp: max(ends[tp].offset, stable[tp].offset) for tp in partitions}
        return {
            tp: PartitionOffsets(
                starts[tp].offset,
                marks[tp],
                stable[tp].offset,
                shapes[tp].topic_id,
                max(0, ends[tp].leader_epoch or 0),
                committed_end=marks[tp],
                cluster_id=self._connection.cluster_id,
            )
            for tp in partitions
        }

    def _with_leaders(self, partitions: Collection[TopicPartition], call: Callable[[], T]) -> T:
        """Repeat `call` until the partitions have leaders, and return its result."""

        def answer() -> T | None:
            try:
                return call()
            except (UnknownTopic, UnknownPartition):  # also raised if no leader is known
                self._topics.forget({tp.topic for tp in partitions})
                for tp in partitions:
                    self._topics.check(tp)  # raises if the topic or partition does not exist
                return None

        return self._connection.until(answer, "asking for offsets")

    def _ends(self, partitions: Collection[TopicPartition]) -> tuple[Answers, Answers, Answers]:
        """Return log starts, high watermarks and last stable offsets."""
        # Query the start first and the stable end last. All of them only grow, so the start
        # cannot exceed the ends.
        doing = "asking for the ends of"
        return (
            self._ask(partitions, OFFSET_BEGINNING, "read_uncommitted", doing),
            self._ask(partitions, OFFSET_END, "read_uncommitted", doing),
            self._ask(partitions, OFFSET_END, "read_committed", doing),
        )

    def bound_for_time(
        self, partition: TopicPartition, timestamp: int, isolation: Isolation
    ) -> int | None:
        """Return an offset before which no record has this timestamp (ms) or a later one.

        None if no record has. The cluster finds aborted records too, and markers of transactions,
        whose timestamps are those of the brokers' clocks. So the first record of that time may be
        after the offset, or missing.
        """
        self._topics.check(partition)
        time = max(0, timestamp)
        found = self._with_leaders(
            [partition],
            lambda: self._ask([partition], time, isolation, "searching by time")[partition],
        )
        return None if found.offset < 0 else int(found.offset)

    def _ask(
        self, partitions: Collection[TopicPartition], time: int, isolation: Isolation, doing: str
    ) -> Answers:
        """Return the offset of each partition at `time` (ms, OFFSET_BEGINNING or OFFSET_END)."""
        if not partitions:
            return {}
        query = [KafkaPartition(*tp, time) for tp in partitions]
        with (
            self._metadata_consumers.consumer(isolation) as consumer,
            self._connection.translated(doing),
        ):
            answers = consumer.offsets_for_times(query, ATTEMPT_S)
            found = {TopicPartition(one.topic, one.partition): one for one in answers}
            for tp, one in found.items():
                if one.error is not None:
                    raise self._connection.failure(one.error, f"{doing} {tp}")
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
        # Consumers lack this call, so the admin client is used despite the risk that
        # metadata_consumer.py describes.
        futures = self._connection.admin.delete_records(
            [KafkaPartition(*partition, before)], request_timeout=DEADLINE_S
        )
        deleted = self._connection.results(futures, "deleting records of")
        return int(next(iter(deleted.values())).low_watermark)
