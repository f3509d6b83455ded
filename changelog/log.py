"""A log with everything at hand: topics, producers, consumers, whole topics as tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.broker import Broker
from strandline.changelog.client.consumer import Consumer
from strandline.changelog.client.producer import BatchMetadata, Producer
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.log_config import LogConfig
from strandline.changelog.records import (
    HEADERS_TYPE,
    Batch,
    Isolation,
    PartitionOffsets,
    TopicInfo,
    TopicPartition,
)
from strandline.changelog.schema import upgrade, value_type

if TYPE_CHECKING:
    import polars as pl

Offsets = Mapping[int, int] | int
"""By partition, or the same for all."""


class Log:
    """An open log. `broker` is the interface below; `clock` what its clients go by.

    Raises what `Broker` raises.
    """

    def __init__(self, broker: Broker, *, clock: Clock | None = None) -> None:
        self.broker = broker
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._appender: Producer | None = None

    # Clients --------------------------------------------------------------------------

    def producer(self, **options: Any) -> Producer:
        """A new producer; options as for `Producer`."""
        return Producer(self.broker, **{"clock": self._clock, **options})

    def consumer(self, **options: Any) -> Consumer:
        """A new consumer; options as for `Consumer`."""
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
        """Create a topic, durably. Raises TopicExists, InvalidTopic, InvalidConfig."""
        return self.broker.create_topic(name, partitions, config=config, schema=schema)

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, str | None] | None = None,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
    ) -> TopicInfo:
        """Change settings, add partitions, or extend the schema (see `Broker.alter_topic`)."""
        return self.broker.alter_topic(name, config=config, partitions=partitions, schema=schema)

    def config(self) -> LogConfig:
        """The settings of the log as a whole: defaults for topics, and the cleaner's."""
        return LogConfig(self.broker.describe_config())

    def alter_config(self, changes: Mapping[str, str | None]) -> LogConfig:
        """Change them, durably and at once; None takes one back. Raises InvalidConfig.

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
        """One topic. Raises UnknownTopic."""
        return self.broker.topic(name)

    def topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """The topics by name, with or without the log's own."""
        return [topic for topic in self.broker.topics() if internal or not topic.internal]

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        """The ends of each partition."""
        return {tp.partition: e for tp, e in self.broker.offsets(self._partitions(topic)).items()}

    def _partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for n in range(self.broker.topic(topic).partitions)]

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
        """Append a DataFrame, Arrow data or a list of rows (see `Producer.append`)."""
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
        """All records of a topic, partition by partition in their order, as a table.

        Columns: partition (int32), offset (int64), timestamp (UTC, ms), key (binary), value
        (binary, or a struct on a typed topic), headers if any record has some. `start` and
        `end` bound the offsets, end excluded; by default all there is at the time of the call.
        """
        info = self.broker.topic(topic)
        partitions = [TopicPartition(topic, n) for n in range(info.partitions)]
        with self.consumer(isolation=isolation) as consumer:
            starts = _bounds(start, consumer.beginning_offsets(partitions))
            ends = _bounds(end, consumer.end_offsets(partitions), limit=True)
            wanted = [tp for tp in partitions if starts[tp] < ends[tp]]
            tables = [
                _table(batch, value_type(info.schema))
                for tp in wanted
                for batch in _batches(consumer, tp, starts[tp], ends[tp])
            ]
        empty = _table_schema(value_type(info.schema)).empty_table()
        return pa.concat_tables([empty, *tables], promote_options="default")

    def to_polars(
        self,
        topic: str,
        *,
        start: Offsets | None = None,
        end: Offsets | None = None,
        isolation: Isolation = "read_committed",
        tombstones: bool = False,
    ) -> pl.DataFrame:
        """The records of a topic as a polars DataFrame, bounds as for `read`.

        On a typed topic the value's columns stand for themselves; partition, offset, timestamp
        and key come first, with an underscore in front if the value has a column of that name.
        Tombstones are left out; with `tombstones` they are rows whose value is null, and a
        column `tombstone` (bool) behind the key tells them apart.
        """
        import polars as pl

        table = self.read(topic, start=start, end=end, isolation=isolation)
        if tombstones:
            table = table.add_column(4, "tombstone", table["value"].is_null())
        else:
            table = table.filter(table["value"].is_valid())
        if pa.types.is_struct(table.schema.field("value").type):
            table = _flattened(table)
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        return frame

    # Closing --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the log; harmless when repeated. Producers are to be closed before."""
        with self._lock:
            if self._appender is not None:
                self._appender.close()
                self._appender = None
        self.broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _bounds(
    given: Offsets | None, whole: Mapping[TopicPartition, int], *, limit: bool = False
) -> dict[TopicPartition, int]:
    """An offset for each partition: what was given, or as far as there is anything."""
    if isinstance(given, int):
        given = {tp.partition: given for tp in whole}
    given = given or {}
    unknown = set(given) - {tp.partition for tp in whole}
    if unknown:
        raise InvalidRequest(f"offsets are given for partitions {sorted(unknown)}, which are none")
    pick = min if limit else max
    return {tp: pick(given.get(tp.partition, edge), edge) for tp, edge in whole.items()}


def _batches(consumer: Consumer, tp: TopicPartition, start: int, end: int) -> Iterator[Batch]:
    consumer.assign([tp])
    consumer.seek(tp, start)
    while consumer.position(tp) < end:
        for batch in consumer.poll():
            yield batch if batch.last_offset < end else _before(batch, end)


def _before(batch: Batch, end: int) -> Batch:
    count = pc.sum(pc.less(batch.offsets, end)).as_py()
    return batch.slice(0, count)


def _table_schema(value: pa.DataType) -> pa.Schema:
    return pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", "UTC")),
            ("key", pa.binary()),
            ("value", value),
        ]
    )


def _table(batch: Batch, value: pa.DataType) -> pa.Table:
    columns = upgrade(batch.columns, value)
    schema = _table_schema(value)
    arrays = [
        pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch)),
        batch.offsets,
        pc.cast(columns.column("timestamp"), schema.field("timestamp").type),
        columns.column("key"),
        columns.column("value"),
    ]
    if columns.num_columns > 3:
        schema = schema.append(pa.field("headers", HEADERS_TYPE))
        arrays.append(columns.column("headers"))
    return pa.Table.from_arrays(arrays, schema=schema)


def _flattened(table: pa.Table) -> pa.Table:
    """The fields of `value` as columns of their own."""
    index = table.schema.get_field_index("value")
    fields = list(table.schema.field(index).type)
    taken = {field.name for field in fields}
    rest = table.remove_column(index)
    names = [f"_{name}" if name in taken else name for name in rest.schema.names]
    flat = rest.rename_columns(names)
    values = table.column(index).combine_chunks()
    for field, array in zip(fields, values.flatten(), strict=True):
        flat = flat.append_column(field.name, array)
    return flat
