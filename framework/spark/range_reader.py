"""Reader of one range of offsets, in a task of Spark's: for batches and for streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.types import StructType

from strandline.changelog.broker import Broker
from strandline.changelog.records import TopicInfo
from strandline.changelog.selection import ReadSelection
from strandline.framework.spark import open_logs, reading, versions
from strandline.framework.spark.columns import (
    check_columns,
    metadata_names,
    to_rows,
    to_sized_batches,
)
from strandline.framework.spark.filters import passing
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.tasks import Task

BATCH_ROWS = 32_768
"""Minimum number of rows of a batch for Spark; smaller batches of the log are combined."""


@dataclass
class RangePartition(InputPartition):
    """Ranges that one task reads, in order: of records, or of stores' changelogs."""

    ranges: Task
    since_ms: int | None = None
    """Milliseconds since the epoch. Older records do not pass the filters of the read."""
    metadata: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Names of metadata by topic; other columns are the topic's own. Empty for stores."""


class RecordReader:
    """Reader of the records of a range, for batches and streams."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._target = versions.to_arrow(schema)
        self._filters: list[Filter] = []
        """Filters that are evaluated here and not by Spark."""
        self._names: dict[str, frozenset[str]] = {}
        """Names of metadata by the id of the topic, as of this reader's first look at it."""

    def _described(self, broker: Broker) -> list[TopicInfo]:
        """Return the topics. Raises UnknownTopic, and InvalidConfig for columns that none has."""
        topics = reading.describe(broker, self._options.topics)
        check_columns(topics, self._target, self._metadata(topics))
        return topics

    def _metadata(self, topics: Sequence[TopicInfo]) -> dict[str, frozenset[str]]:
        """Return the names of metadata by topic.

        They stay those of the first look at a topic, so that a column that is added during a query
        does not replace metadata of its name.
        """
        options = self._options
        for topic in topics:
            if topic.topic_id not in self._names:
                self._names[topic.topic_id] = metadata_names(
                    topic, metadata=options.include_metadata, headers=options.include_headers
                )
        return {topic.name: self._names[topic.topic_id] for topic in topics}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task. Spark requests a partition even if none was planned."""
        if not isinstance(partition, RangePartition):
            return
        options = self._options
        selection = ReadSelection(frozenset(self._target.names), partition.since_ms)
        with open_logs.opened(options.path) as log:
            rows = (
                passing(self._filters, to_rows(batch, self._target, partition.metadata[each.topic]))
                for each in partition.ranges
                for batch in reading.read_range(
                    log.broker,
                    each,
                    fail_on_data_loss=options.fail_on_data_loss,
                    selection=selection,
                )
            )
            yield from to_sized_batches(rows, BATCH_ROWS)
