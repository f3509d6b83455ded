"""The open log as programs use it: topics, producers, consumers, whole topics as tables."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.client.consumer import Consumer
from strandline.changelog.client.producer import BatchMetadata, Producer
from strandline.changelog.client.tables import Offsets, record_frame, topic_table
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.closing import ClosedByWith
from strandline.changelog.log_config import LogConfig
from strandline.changelog.records import (
    Isolation,
    PartitionOffsets,
    TopicInfo,
)
from strandline.changelog.schema import value_type

if TYPE_CHECKING:
    import polars as pl


class Log(ClosedByWith):
    """An open log, as `changelog.open` returns it. Thread-safe.

    Close it, or use it in a `with` statement. Methods raise the errors of `Broker`.

    Args:
        broker: The implementation: a folder's owner, a connection to one, or a Kafka cluster.
        clock: Time source of the log's producers and consumers; the system's by default.
    """

    def __init__(self, broker: Broker, *, clock: Clock | None = None) -> None:
        self.broker = broker
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._appender: Producer | None = None

    # Clients --------------------------------------------------------------------------

    def producer(self, **options: Any) -> Producer:
        """Return a new producer.

        Args:
            **options: Keyword arguments of `Producer`, such as `transactional_id`.
        """
        return Producer(self.broker, **{"clock": self._clock, **options})

    def consumer(self, **options: Any) -> Consumer:
        """Return a new consumer.

        Args:
            **options: Keyword arguments of `Consumer`, such as `group`.
        """
        return Consumer(self.broker, **{"clock": self._clock, **options})

    # Topics ---------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        schema: pa.Schema | None = None,
    ) -> TopicInfo:
        """Create a topic, durably.

        Args:
            name: Name of the topic. Names that begin with two underscores are reserved.
            partitions: Number of partitions. It can be raised later, but not lowered.
            config: Topic settings by Kafka's names, such as {"cleanup.policy": "compact"}; the
                log's settings and the built-in defaults apply to all others.
            schema: Arrow schema of the values of a typed topic; without one, values are bytes.

        Returns:
            Description of the new topic.

        Raises:
            TopicExists: A topic of this name exists.
            InvalidTopic: The name is not allowed.
            InvalidConfig: A setting is unknown, or its value is not allowed.
        """
        return self.broker.create_topic(name, partitions, config=config, schema=schema)

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, str | None] | None = None,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
    ) -> TopicInfo:
        """Change settings, add partitions, or extend the schema.

        Args:
            name: Name of the topic.
            config: Settings to change; None as a value resets a setting to its default.
            partitions: New number of partitions, at least the current one.
            schema: New schema, which may only add nullable fields to the current one.

        Returns:
            Description of the changed topic.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidConfig: A setting is invalid, or `partitions` is less than the current number.
            SchemaMismatch: The schema does not extend the current one.
        """
        return self.broker.alter_topic(name, config=config, partitions=partitions, schema=schema)

    def config(self) -> LogConfig:
        """Return the settings of the whole log: defaults for topics, and the cleaner's."""
        return LogConfig(self.broker.describe_config())

    def alter_config(self, changes: Mapping[str, str | None]) -> LogConfig:
        """Change settings of the whole log, durably. They take effect at once.

        Args:
            changes: New values by name; None resets a setting to its built-in default.

        Returns:
            All settings of the log after the change.

        Raises:
            InvalidConfig: A setting is invalid, or contradicts a topic's; nothing was changed.

        >>> import tempfile
        >>> from strandline import changelog
        >>> with tempfile.TemporaryDirectory() as folder, changelog.open(folder) as log:
        ...     _ = log.alter_config({"log.retention.hours": "24"})
        ...     log.create_topic("t").effective.retention_ms
        86400000
        """
        return LogConfig(self.broker.alter_config(changes))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and committed offsets. Raises UnknownTopic."""
        self.broker.delete_topic(name)

    def topic(self, name: str) -> TopicInfo:
        """Return the description of a topic. Raises UnknownTopic."""
        return self.broker.topic(name)

    def topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """Return the descriptions of all topics, sorted by name.

        Args:
            internal: True: include the log's own topics.
        """
        return [topic for topic in self.broker.topics() if internal or not topic.internal]

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        """Return the log start, high watermark and other bounds of each partition of a topic."""
        return {
            tp.partition: e
            for tp, e in self.broker.offsets(self.broker.topic(topic).topic_partitions).items()
        }

    # Whole topics ---------------------------------------------------------------------

    def append(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        timestamp: str | int | None = None,
        partition: int | None = None,
    ) -> list[BatchMetadata]:
        """Append a DataFrame, Arrow data or a list of rows; return once all is acknowledged.

        Args:
            topic: Name of the topic.
            data: A DataFrame, an Arrow table or batch, or a list of mappings.
            key: Column with the keys of records.
            timestamp: Column with the times of records, or one time for all of them in
                milliseconds since the epoch; now by default.
            partition: Partition of all records; by default each record's key selects it.

        Returns:
            Partition and offsets of each appended batch.

        Raises:
            InvalidRecord: A record cannot be stored in the topic (see `Producer.append`).
            SchemaMismatch: The columns do not fit the topic's schema.
            RecordTooLarge: A record exceeds the topic's `max.message.bytes`.
            UnknownTopic: There is no such topic.
        """
        with self._lock:
            if self._appender is None:
                self._appender = self.producer()
        return self._appender.append(topic, data, key=key, timestamp=timestamp, partition=partition)

    def read(
        self,
        topic: str,
        *,
        start: Offsets | None = None,
        end: Offsets | None = None,
        isolation: Isolation = "read_committed",
    ) -> pa.Table:
        """Return the records of a topic as a table, ordered by partition and offset.

        Columns: partition (int32), offset (int64), timestamp (UTC, ms), key (binary), value
        (binary, or a struct on a typed topic), and headers if any record has some.

        Args:
            topic: Name of the topic.
            start: First offset, of each partition or of all; by default the log start.
            end: End offset (exclusive), of each partition or of all; by default, and at most,
                the end at the time of the call.
            isolation: "read_committed" (default): only committed records. "read_uncommitted":
                also records of open and aborted transactions.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidConfig: There is no such isolation.
            InvalidRequest: `start` or `end` names a partition that does not exist.
            OffsetOutOfRange: The topic was deleted and created again during the call.
        """
        info = self.broker.topic(topic)
        value = value_type(info.schema)
        return topic_table(self.broker, info, value, isolation=isolation, start=start, end=end)

    def to_polars(
        self,
        topic: str,
        *,
        start: Offsets | None = None,
        end: Offsets | None = None,
        isolation: Isolation = "read_committed",
        tombstones: bool = False,
    ) -> pl.DataFrame:
        """Return the records of a topic as a polars DataFrame.

        The first columns are partition, offset, timestamp, key, and headers if any record has
        some. On a typed topic the columns of the value follow; one that has the name of a first
        column is called `value_<name>`. Otherwise a column `value` follows.

        Args:
            topic: Name of the topic.
            start: First offset, as for `read`.
            end: End offset (exclusive), as for `read`.
            isolation: Visibility of uncommitted records, as for `read`.
            tombstones: False (default): leave out tombstones. True: include them as rows whose
                value is null, marked by a column `tombstone` (bool) after the key.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidRequest: `start` or `end` names a partition that does not exist.
            SchemaMismatch: Polars does not have the type of a column, or a decimal has more than
                38 digits.
        """
        table = self.read(topic, start=start, end=end, isolation=isolation)
        has_fields = pa.types.is_struct(table.schema.field("value").type)
        return record_frame(table, has_fields=has_fields, tombstones=tombstones)

    # Closing --------------------------------------------------------------------------

    def close(self) -> None:
        """Close the log. Close its producers first. Repeated calls have no effect."""
        with self._lock:
            if self._appender is not None:
                self._appender.close()
                self._appender = None
        self.broker.close()
