"""Consumers for queries about offsets, which read no records.

A consumer without a subscription can read and write its group's offsets, and query the bounds of
partitions. The admin client has calls for the same, but each of them can crash the process:

    offsets of groups       if the connection to the coordinator breaks at the wrong moment: an
                            assertion of librdkafka (issue 4605; at least all releases up to 2.15)
    bounds of partitions    if a leader becomes known during the query:
                            `rd_kafka_topic_partition_list_query_leaders_async` continues in two
                            threads, and one frees memory that the other uses (seen with 2.16)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer

from strandline.changelog.kafka.connection import KafkaConnection
from strandline.changelog.kafka.idle_pool import IdlePool
from strandline.changelog.records import Isolation

NO_GROUP = "strandline"
"""Group id for queries that are not about a group."""
REFRESH_MS = 1_000
"""Milliseconds after which a consumer that waits for a leader notices that it has changed."""


class MetadataConsumers:
    """Consumers for queries to one cluster, kept for the next query. Thread-safe."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._idle: IdlePool[_Asker] = IdlePool(connection)

    @contextmanager
    def consumer(self, isolation: Isolation, group: str = NO_GROUP) -> Iterator[Consumer]:
        """Yield a consumer for exclusive use. A block without an error counts as an answer."""
        kept = self._idle.take(lambda one: one.purpose == (isolation, group))
        kept = kept or _Asker(self._connection, isolation, group)
        try:
            yield kept.consumer
            # Before the poll, which may deliver errors from before the answer.
            self._connection.answered()
        finally:
            kept.consumer.poll(0)  # deliver errors of its connections
            self._idle.put(kept)

    def close(self) -> None:
        """Close the idle consumers."""
        self._idle.close()


class _Asker:
    def __init__(self, connection: KafkaConnection, isolation: Isolation, group: str) -> None:
        self.purpose = (isolation, group)
        self.consumer: Consumer = connection.client(
            Consumer,
            {
                "group.id": group,
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "topic.metadata.refresh.interval.ms": REFRESH_MS,
            },
        )

    def close(self) -> None:
        self.consumer.close()
