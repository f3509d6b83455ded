"""Rows of Spark as records of a topic.

A typed topic takes its own columns, and beside them a key and a timestamp. A topic of bytes takes
the columns of Spark's Kafka sink: key, value, headers, topic, partition, timestamp. Text is stored
as UTF-8. A null value is a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.client.columns import check_columns, to_batches
from strandline.changelog.client.partitioner import partitions_for, split
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRecord,
    SchemaMismatch,
    UnknownPartition,
)
from strandline.changelog.records import TopicInfo
from strandline.framework.spark.writing.options import SinkOptions

Numbers = npt.NDArray[np.int64]

BYTES_COLUMNS = {"key", "value", "headers", "topic", "partition", "timestamp"}
"""Columns that a topic of bytes takes."""

PLACES = ("topic", "partition")
"""Columns that say where a row goes, unless the topic has columns of these names."""

Part = tuple[int | None, pa.RecordBatch]
"""A partition, or None if the key decides, and records in the columns of the log."""


class RowLayout:
    """Conversion of rows for one topic.

    Raises InvalidConfig for a topic that the log or an app keeps for itself.
    """

    def __init__(self, topic: TopicInfo, options: SinkOptions) -> None:
        if topic.internal:
            raise InvalidConfig(
                f"topic {topic.name!r} is internal: only the programs that keep their state in it "
                "write it; choose another name"
            )
        self.topic = topic
        self._options = options
        self._is_compacted = topic.effective.compact

    def check(self, frame: pa.Schema) -> None:
        """Raise SchemaMismatch if rows of `frame` do not fit the topic, whatever their values."""
        given, _ = self._without_places(pa.RecordBatch.from_pylist([], schema=frame))
        options = self._options
        check_columns(*(given.schema, self.topic), key=options.key, timestamp=options.timestamp)

    def parts(self, rows: pa.RecordBatch, now_ms: int) -> Iterator[Part]:
        """Yield rows as records, in order within each partition.

        Args:
            rows: Rows of Spark.
            now_ms: Time of records without one, in milliseconds since the epoch.

        Raises:
            SchemaMismatch: A column is unknown, missing, or of a type that does not fit.
            InvalidRecord: A record of a compacted topic has no key.
            UnknownPartition: The topic does not have the partition of a row.
        """
        given, partitions = self._without_places(rows)
        options = self._options
        at = 0
        for columns in to_batches(
            *(given, self.topic), now_ms=now_ms, key=options.key, timestamp=options.timestamp
        ):
            self._check_keys(columns)
            yield from self._by_partition(columns, partitions, at)
            at += len(columns)

    def _without_places(self, rows: pa.RecordBatch) -> tuple[pa.Table, Numbers | None]:
        """Return the rows without the columns that say where they go, and their partitions."""
        table = pa.Table.from_batches([rows])
        own = set(self.topic.schema.names) if self.topic.schema is not None else set()
        places = [name for name in PLACES if name in rows.schema.names and name not in own]
        partitions = self._partitions(rows["partition"]) if "partition" in places else None
        return table.drop_columns(places), partitions

    def _partitions(self, column: pa.Array) -> Numbers | None:
        """Return the partition of each row, -1 if its key decides; None if all keys decide."""
        if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            raise SchemaMismatch(
                f"the column `partition` has numbers of partitions, got {column.type}: cast it to "
                "int, or leave it out"
            )
        if column.null_count == len(column):
            return None
        whole = pc.fill_null(pc.cast(column, pa.int64()), -1)
        numbers: Numbers = whole.to_numpy(zero_copy_only=False)
        outside = numbers[(numbers >= self.topic.partitions) | ((numbers < 0) & column.is_valid())]
        if len(outside):
            raise UnknownPartition(
                f"a row is for partition {outside[0]}, but topic {self.topic.name!r} has "
                f"{self.topic.partitions}"
            )
        return numbers

    def _check_keys(self, columns: pa.RecordBatch) -> None:
        if self._is_compacted and columns.column("key").null_count:
            raise InvalidRecord(
                f"topic {self.topic.name!r} is compacted, so its records need keys, and a row has "
                "none: name the column with .option('key', …), or leave out rows in which it is null"
            )

    def _by_partition(
        self, columns: pa.RecordBatch, partitions: Numbers | None, start: int
    ) -> Iterator[Part]:
        """Yield records by partition. Those of one key stay in order, whatever names their partitions."""
        if partitions is None:
            yield None, columns
            return
        given = partitions[start : start + len(columns)]
        by_key = partitions_for(columns.column("key"), self.topic.partitions)
        own = np.where(given < 0, by_key, given)
        for number, rows in split(columns, own + 1):  # one more, as records without a key have -1
            yield number - 1 if number else None, rows
