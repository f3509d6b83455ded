"""`format("strandline")`: the objects that Spark calls to find a schema, to read and to write.

Spark creates these objects in processes of its own (one to plan, one to follow a stream, one for
each task) and pickles them in between. They therefore hold options and no connections; a process
that needs the log opens it. All decisions are made in `planning`.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from strandline.changelog.errors import InvalidConfig
from strandline.framework.spark import (
    changes,
    open_logs,
    pinning,
    planning,
    pruning,
    reading,
    tables,
    versions,
)
from strandline.framework.spark.columns import topics_schema
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.range_reader import RangePartition, RecordReader
from strandline.framework.spark.tasks import table_tasks, tasks_of
from strandline.framework.spark.writing.options import SinkOptions


class StrandlineSource(DataSource):
    """A log as a source and a sink for Spark; the modules `options` list the options of both."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "strandline"

    @property
    def _options(self) -> SourceOptions:
        return SourceOptions.parse(self._given)

    def schema(self) -> StructType:
        options = self._options
        with open_logs.opened(options.path) as log:
            if options.changes:
                return versions.to_spark(changes.changes_schema(log.broker, options))
            if options.store is not None:
                return versions.to_spark(tables.store_schema(log.broker, options))
            topics = reading.describe(log.broker, options.topics)
        found = topics_schema(
            topics, metadata=options.include_metadata, headers=options.include_headers
        )
        return versions.to_spark(found)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options
        if options.changes:
            raise InvalidConfig("changes are read as a stream: spark.readStream")
        if options.store is not None:
            return StoreReader(options, schema)
        reader = FilteringReader if options.push_filters else BatchReader
        return reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from strandline.framework.spark.streaming import ChangesReader, StreamReader

        options = self._options
        if options.changes:
            return ChangesReader(options, schema)
        if options.store is not None:
            raise InvalidConfig(
                "a store's latest state is a batch read; to follow its changes, set the option changes "
                "to true, or subscribe to its changelog topic"
            )
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from strandline.framework.spark.writing.writers import BatchWriter

        return BatchWriter(SinkOptions.parse(self._given), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from strandline.framework.spark.writing.writers import StreamWriter

        return StreamWriter(SinkOptions.parse(self._given), schema, overwrite=overwrite)


class BatchReader(RecordReader, DataSourceReader):
    """One read of the current records, or between `startingOffsets` and `endingOffsets`."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with open_logs.opened(options.path) as log:
            metadata = self._metadata(self._described(log.broker))
            names = frozenset.intersection(*metadata.values())
            filters = pruning.metadata_filters(self._filters, self._target, names)

            def look() -> planning.ReadPlan:
                ends = reading.ends_of(log.broker, reading.describe(log.broker, options.topics))
                first, last = options.start_of_batch(), options.end_of_batch()
                start = reading.resolve(log.broker, first, ends, "startingOffsets")
                end = reading.resolve(log.broker, last, ends, "endingOffsets")
                found = planning.plan(start, end, ends)
                return found._replace(ranges=pruning.pruned(log.broker, found.ranges, filters))

            name, timeout = pinning.pin_of_read(), options.batch_pin_ms
            ranges = pinning.planned(log.broker, options, name, timeout, look)
            since = pruning.since_ms(filters)
            tasks = tasks_of(log.broker, options, ranges)
            return [RangePartition(task, since, metadata) for task in tasks]


class FilteringReader(BatchReader):
    """A batch read to which Spark hands over filters (`pushFilters`).

    Spark plans with it only if `spark.sql.python.filterPushdown.enabled` is true, else it raises.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Take over the filters that give Spark's results here, and return the others."""
        with open_logs.opened(self._options.path) as log:
            metadata = self._metadata(self._described(log.broker))
        names = frozenset.intersection(*metadata.values())
        self._filters = pruning.pushable(filters, self._target, names)
        return [each for each in filters if not any(each is one for one in self._filters)]


class StoreReader(DataSourceReader):
    """Reader of the latest state of a store or a compacted topic."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._target = versions.to_arrow(schema)

    def partitions(self) -> Sequence[InputPartition]:
        with open_logs.opened(self._options.path) as log:
            tables.check_columns(log.broker, self._options, self._target)
            ranges = tables.plan_store(log.broker, self._options)
            return [RangePartition(task) for task in table_tasks(log.broker, self._options, ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the latest value of each key of a task's partitions, as of the time of planning."""
        if not isinstance(partition, RangePartition):
            return
        with open_logs.opened(self._options.path) as log:
            for each in partition.ranges:
                yield from tables.read_store(log.broker, each, self._target, self._options)
