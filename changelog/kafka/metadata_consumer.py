"""Consumers that are asked questions, and read nothing.

The admin client has calls for the same. They are not used, as each can end the process: where the
connection to a group's coordinator breaks at the wrong moment (an assertion of librdkafka's, its issue
4605; every release up to 2.15 at least has it), and where a leader becomes known while offsets of its
partition are asked for (`rd_kafka_topic_partition_list_query_leaders_async` goes on in two threads, and
one frees what the other is using; met with 2.16). A consumer that has subscribed to nothing reads and
writes its group's offsets, and tells where partitions begin and end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer

from strandline.changelog.kafka.connection import KafkaConnection
from strandline.changelog.kafka.idle_pool import IdlePool
from strandline.changelog.records import Isolation

NO_GROUP = "strandline"
"""For questions that are about no group."""
REFRESH_MS = 1_000
"""How soon one that waits for a leader learns that it is another."""


class MetadataConsumers:
    """Those of one cluster, kept for the next question. Thread-safe."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._idle: IdlePool[_Asker] = IdlePool(connection)

    @contextmanager
    def consumer(self, isolation: Isolation, group: str = NO_GROUP) -> Iterator[Consumer]:
        """One that nobody else uses meanwhile. What ends without an error was answered."""
        asker = self._idle.take(lambda one: one.purpose == (isolation, group))
        asker = asker or _Asker(self._connection, isolation, group)
        try:
            yield asker.consumer
            self._connection.answered()  # before it tells of what was wrong earlier
        finally:
            asker.consumer.poll(0)  # for what it has to say of its connections
            self._idle.put(asker)

    def close(self) -> None:
        """Close the consumers that are not in use."""
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
